"""`gnomon doctor`: what an installation needs, and what to do about what is missing. The checks are in `gnomon_cli.doctor`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from gnomon_cli.command import Command
from gnomon_cli.options import json_option
from gnomon_cli.output import EXIT_FAILURE, WrongCommand, print_json
from gnomon_server.options import state_folder


@click.command(
    cls=Command,
    examples="""
    gnomon doctor
    gnomon doctor --platform openfaas
    gnomon doctor --platform openfaas --service-account openfaas:gateway
    gnomon doctor --platform knative --kubeconfig ./kubeconfig --json
    """,
)
@click.option(
    "--platform",
    type=click.Choice(("local", "openfaas", "knative")),
    default="local",
    help="Installation to check: this machine, or a cluster; default local.",
)
@click.option(
    "--kubeconfig",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=None,
    help="How to reach the cluster; default KUBECONFIG, else the cluster that this runs in.",
)
@click.option("--context", default=None, metavar="NAME", help="The kubeconfig's context; default its current one.")
@click.option("--namespace", default="openfaas-fn", metavar="NAME", help="Namespace of the functions; default openfaas-fn.")
@click.option("--system-namespace", default="openfaas", metavar="NAME", help="Namespace of the gateway; default openfaas.")
@click.option(
    "--service-account",
    default="",
    metavar="NAMESPACE:NAME",
    help="User or service account whose permissions are checked, such as openfaas:gateway; default your own.",
)
@click.option("--state", default="", metavar="FOLDER", help="State folder of this machine; default .gnomon here.")
@json_option
def doctor(
    *,
    platform: str,
    kubeconfig: Path | None,
    context: str | None,
    namespace: str,
    system_namespace: str,
    service_account: str,
    state: str,
    as_json: bool,
) -> None:
    """Check what an installation needs, a line each: ok, warn or fail, and what to do.

    Ends with 1 if anything fails. Nothing is changed by looking.
    """
    from gnomon_cli.doctor.findings import failed, run_checks  # noqa: PLC0415 - help imports nothing heavy

    if platform == "local":
        from gnomon_cli.doctor.machine import machine_checks  # noqa: PLC0415 - likewise

        results = run_checks(machine_checks(state_folder(state, os.environ)))
    else:
        from gnomon_cli.doctor.examination import examine_cluster  # noqa: PLC0415 - likewise

        spaces = system_namespace, namespace
        results = examine_cluster(kubeconfig, context, spaces, _account(service_account), knative=platform == "knative")
    if as_json:
        print_json([finding.document for finding in results])
    else:
        for finding in results:
            click.echo(finding.line)
    if failed(results):
        click.get_current_context().exit(EXIT_FAILURE)


def _account(text: str) -> tuple[str, str] | None:
    """NAMESPACE:NAME, or None for nothing."""
    if not text:
        return None
    namespace, colon, name = text.partition(":")
    if not (namespace and colon and name):
        raise WrongCommand(f"--service-account is {text!r}.", "Write it as NAMESPACE:NAME, such as openfaas:gateway.")
    return namespace, name
