"""`gnomon serve`: the whole platform on this machine. What it starts is wired together in `gnomon_cli.serve`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gnomon_cli.command import Command
from gnomon_cli.commands.adoption_options import adoption_options, read_provider_options
from gnomon_cli.commands.cluster_options import CLUSTER_OPTIONS, cluster_options, read_cluster_options
from gnomon_cli.commands.lambda_options import lambda_options, read_lambda_options
from gnomon_cli.serve_options import ServeOptions
from gnomon_cli.state import state_folder
from gnomon_core.errors import bad_request

if TYPE_CHECKING:
    from gnomon_cli.knative import KnativeOptions

MAX_POOL = 64
"""Each holds the memory of a process with torch, some 20 MB of its own."""


def serve_options(function: Any) -> Any:
    """Where the node listens, what it keeps and what it may use."""
    for option in reversed(
        [
            click.option("--port", type=click.IntRange(0, 65535), default=8080, help="Default 8080; 0 takes a free one."),
            click.option("--host", default="127.0.0.1", help="Address to listen on; others than loopback need --basic-auth."),
            click.option("--state", default="", metavar="FOLDER", help="What must outlive a restart; default .gnomon here."),
            click.option(
                "--models",
                default="",
                metavar="FOLDER",
                help="Model repository or s3:// address; default in the state folder.",
            ),
            click.option("--cores", type=click.IntRange(min=1), default=None, help="Cores that instances may use; default all."),
            click.option(
                "--pool",
                type=click.IntRange(0, MAX_POOL),
                default=1,
                help="Empty containers kept warm, from which Shadows are made, more after bursts; default 1.",
            ),
            click.option(
                "--reserved-cores",
                type=click.FloatRange(min=0),
                default=0.0,
                help="Cores held back for Shadows: scaling policies do not see them as free, and a Body gets them only "
                "where nothing else is free; default 0.",
            ),
            click.option(
                "--images",
                type=click.Path(exists=True, dir_okay=False, path_type=Path),
                default=None,
                help="Further images and the runtimes that serve them here.",
            ),
            click.option(
                "--basic-auth/--no-basic-auth", default=False, envvar="basic_auth", help="Ask for a login on control routes."
            ),
            click.option(
                "--secrets",
                type=click.Path(file_okay=False, path_type=Path),
                default=None,
                envvar="secret_mount_path",
                help="Folder of basic-auth-user and basic-auth-password; default: in the state folder, made if missing.",
            ),
            click.option(
                "--namespace",
                "namespaces",
                multiple=True,
                metavar="NAME",
                help="A namespace beside openfaas-fn; on knative, the only one that is looked after, with a Lease of its own.",
            ),
            click.option(
                "--policy", "policies", multiple=True, metavar="NAME", help="A third-party policy that functions may name."
            ),
            click.option(
                "--callback-host", "callback_hosts", multiple=True, metavar="HOST", help="Host that X-Callback-Url may name."
            ),
            click.option(
                "--allowed-host",
                "allowed_hosts",
                multiple=True,
                metavar="NAME",
                help="Host name that a proxy in front is called by.",
            ),
            click.option(
                "--platform",
                type=click.Choice(("local", "lambda", "openfaas", "provider", "knative")),
                default="local",
                help="Where functions run: processes of this machine, AWS Lambda, a cluster's pods, or where a foreign provider "
                "of OpenFaaS runs them; or knative, to scale services of the class gnomon there. Default local.",
            ),
            click.option("-v", "--verbose", is_flag=True, help="Log every decision and every change."),
        ]
    ):
        function = option(function)
    return cluster_options(lambda_options(adoption_options(function)))


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
    """Serve functions on this machine: gateway, autoscaler and instances, until Ctrl-C."""
    if options["platform"] == "knative":
        from gnomon_cli.knative import serve_knative  # noqa: PLC0415 - as below, and the Kubernetes client

        serve_knative(knative_options(options), verbose=options["verbose"])
        return
    from gnomon_cli.serve import serve as run  # noqa: PLC0415 - the gateway's libraries take a second to import

    run(read_options(**options))
