"""`gnomon serve`: the whole platform on this machine. What it starts is wired together in `gnomon_server.composition`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from gnomon_cli.command import Command, option_group
from gnomon_cli.commands.serve_options import (
    CLUSTER_OPTIONS,
    KNATIVE_OPTIONS,
    adoption_options,
    application_options,
    cluster_options,
    keeping_options,
    knative_gateway_options,
    knative_options,
    knative_options_group,
    lambda_options,
    listening_options,
    machine_options,
    read_application_options,
    read_cluster_options,
    read_lambda_options,
    read_provider_options,
    serving_options,
)
from gnomon_core.applications import WHERE_SERVED
from gnomon_core.errors import bad_request
from gnomon_server.options import ServeOptions, state_folder

serve_options = option_group(
    listening_options,
    keeping_options,
    application_options,
    machine_options,
    serving_options,
    cluster_options,
    knative_options_group,
    lambda_options,
    adoption_options,
)
"""All options of the command."""


WITH_APPLICATIONS = ("local", "lambda")
"""The platforms whose gateway serves applications."""


def read_options(*, state: str, models: str, platform: str, **options: Any) -> ServeOptions:
    """The options as values.

    Raises:
        GnomonError: 400 for what the chosen platform lacks.

    """
    if platform == "knative":
        raise bad_request(
            "no_gateway",
            "`gnomon run` needs a gateway of its own, and on Knative the ingress takes the requests.",
            "Use `gnomon serve --platform knative`.",
        )
    for name in KNATIVE_OPTIONS:
        options.pop(name, None)
    _refuse_applications(platform, options)
    options["application"] = read_application_options(options["application"], options["application_port"])
    folder = state_folder(state, os.environ)
    on_lambda = {name: options.pop(name) for name in list(options) if name.startswith("lambda_")}
    aws = read_lambda_options(**on_lambda) if platform == "lambda" else None
    on_cluster = {name: options.pop(name, None) for name in CLUSTER_OPTIONS}
    cluster = read_cluster_options(options["namespaces"], **on_cluster) if platform == "openfaas" else None
    of_provider = {name: options.pop(name) for name in list(options) if name.startswith("provider_")}
    provider = read_provider_options(**of_provider) if platform == "provider" else None
    # Instances have a working directory of their own.
    models = models if "://" in models else str(Path(models or folder / "models").expanduser().absolute())
    return ServeOptions(state=folder, models=models, platform=platform, aws=aws, cluster=cluster, provider=provider, **options)


def _refuse_applications(platform: str, options: Mapping[str, Any]) -> None:
    """Refuse options of applications on a platform whose gateway serves none.

    Raises:
        GnomonError: 400 `store_unused` or `application_unused`.

    """
    for name in ("store", "application"):
        if options[name] and platform not in WITH_APPLICATIONS:
            message = f"--{name} is for applications, and the gateway on {platform} has none."
            raise bad_request(f"{name}_unused", message, f"{WHERE_SERVED} Leave --{name} out.")


@click.command(
    cls=Command,
    examples="""
    gnomon serve
    gnomon serve --port 9000 --state ./state --cores 4
    gnomon serve --pool 2
    gnomon serve --host 0.0.0.0 --basic-auth
    gnomon serve --store redis://127.0.0.1:6379/0
    gnomon serve --application photos/application.yml
    gnomon serve --platform lambda --lambda-role arn:aws:iam::123456789012:role/gnomon
    gnomon serve --platform openfaas --kubeconfig ~/.kube/config
    gnomon serve --platform provider --provider-url http://127.0.0.1:8081 --provider-credentials /run/secrets
    gnomon serve --platform knative --kubeconfig ~/.kube/config
    gnomon serve --platform knative --namespace team-a
    gnomon serve --platform knative --gateway --host 0.0.0.0 --port 8080
    """,
)
@serve_options
def serve(**options: Any) -> None:
    """Serve functions until Ctrl-C: gateway, autoscaler and instances, on this machine unless --platform says where else."""
    if options["platform"] == "knative":
        _refuse_applications("knative", options)
    if options["platform"] == "knative" and options["gateway"]:
        from gnomon_server.knative_gateway import serve_knative_gateway  # noqa: PLC0415 - as below

        serve_knative_gateway(knative_gateway_options(options), verbose=options["verbose"])
        return
    if options["platform"] == "knative":
        from gnomon_server.knative_autoscaler import serve_knative  # noqa: PLC0415 - as below, and the Kubernetes client

        serve_knative(knative_options(options), verbose=options["verbose"])
        return
    from gnomon_server.composition import serve as run  # noqa: PLC0415 - the gateway's libraries take a second to import

    run(read_options(**options))
