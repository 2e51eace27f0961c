"""`gnomon serve`: the whole platform on this machine. What it starts is wired together in `gnomon_cli.serve`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from gnomon_cli.command import Command, option_group
from gnomon_cli.commands.adoption_options import adoption_options, read_provider_options
from gnomon_cli.commands.cluster_options import CLUSTER_OPTIONS, cluster_options, read_cluster_options
from gnomon_cli.commands.lambda_options import lambda_options, read_lambda_options
from gnomon_cli.commands.node_options import keeping_options, listening_options, machine_options, serving_options
from gnomon_cli.serve_options import ServeOptions
from gnomon_cli.state import state_folder
from gnomon_core.errors import bad_request

if TYPE_CHECKING:
    from gnomon_cli.knative import KnativeOptions

serve_options = option_group(
    listening_options, keeping_options, machine_options, serving_options, cluster_options, lambda_options, adoption_options
)
"""Everything that the process is told."""


def read_options(*, state: str, models: str, platform: str, **options: Any) -> ServeOptions:
    """The options as values.

    Raises:
        GnomonError: 400 for what the chosen platform lacks.

    """
    if platform == "knative":
        raise bad_request("no_gateway", "On Knative, requests come by its ingress.", "Use `gnomon serve --platform knative`.")
    folder = state_folder(state, os.environ)
    on_lambda = {name: options.pop(name) for name in list(options) if name.startswith("lambda_")}
    aws = read_lambda_options(**on_lambda) if platform == "lambda" else None
    on_cluster = {name: options.pop(name, None) for name in CLUSTER_OPTIONS}
    cluster = read_cluster_options(options["namespaces"], **on_cluster) if platform == "openfaas" else None
    of_provider = {name: options.pop(name) for name in list(options) if name.startswith("provider_")}
    provider = read_provider_options(**of_provider) if platform == "provider" else None
    models = models or str(folder / "models")
    return ServeOptions(state=folder, models=models, aws=aws, cluster=cluster, provider=provider, **options)


def knative_options(options: dict[str, Any]) -> KnativeOptions:
    """What of the options concerns an autoscaler class, which serves no requests.

    Raises:
        GnomonError: 400 for several namespaces: it looks after all, or after one.

    """
    from gnomon_cli.knative import KnativeOptions, within  # noqa: PLC0415 - only who scales Knative imports it

    names = ("kubeconfig", "policies", "host", "port")
    made = KnativeOptions(**{name: options[name] for name in names})
    match options["namespaces"]:
        case ():
            return made
        case (namespace,):
            return within(made, namespace)
    raise bad_request("one_namespace", "On Knative, all namespaces are looked after, or one.", "Name one, or start one for each.")


@click.command(
    cls=Command,
    examples="""
    gnomon serve
    gnomon serve --port 9000 --state ./state --cores 4
    gnomon serve --pool 2
    gnomon serve --host 0.0.0.0 --basic-auth
    gnomon serve --platform lambda --lambda-role arn:aws:iam::123456789012:role/gnomon
    gnomon serve --platform openfaas --kubeconfig ~/.kube/config
    gnomon serve --platform provider --provider-url http://127.0.0.1:8081 --provider-credentials /run/secrets
    gnomon serve --platform knative --kubeconfig ~/.kube/config
    gnomon serve --platform knative --namespace team-a
    """,
)
@serve_options
def serve(**options: Any) -> None:
    """Serve functions until Ctrl-C: gateway, autoscaler and instances, on this machine unless --platform says where else."""
    if options["platform"] == "knative":
        from gnomon_cli.knative import serve_knative  # noqa: PLC0415 - as below, and the Kubernetes client

        serve_knative(knative_options(options), verbose=options["verbose"])
        return
    from gnomon_cli.serve import serve as run  # noqa: PLC0415 - the gateway's libraries take a second to import

    run(read_options(**options))
