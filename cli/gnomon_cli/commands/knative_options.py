"""What `gnomon serve --platform knative` is told, and which of its two processes it is to be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gnomon_cli.command import option_group
from gnomon_core.errors import bad_request

if TYPE_CHECKING:
    from gnomon_cli.knative import KnativeOptions
    from gnomon_cli.knative_gateway import KnativeGatewayOptions

KNATIVE_OPTIONS = ("gateway", "page_port")
COMMON = ("kubeconfig", "policies", "host", "port")

knative_options_group = option_group(
    click.option(
        "--gateway",
        is_flag=True,
        help="On knative, buffer requests to Revisions that batch, which the ingress leads here, instead of scaling.",
    ),
    click.option(
        "--page-port",
        type=click.IntRange(0, 65535),
        default=9090,
        show_default=True,
        help="With --gateway, where the autoscaler asks what waits here.",
    ),
)
"""Autoscaler or gateway."""


def knative_options(options: dict[str, Any]) -> KnativeOptions:
    """What of the options concerns an autoscaler class, which serves no requests.

    Raises:
        GnomonError: 400 for several namespaces: it looks after all, or after one.

    """
    from gnomon_cli.knative import KnativeOptions, within  # noqa: PLC0415 - only who scales Knative imports it

    made = KnativeOptions(**{name: options[name] for name in COMMON})
    namespace = _namespace(options)
    return made if namespace is None else within(made, namespace)


def knative_gateway_options(options: dict[str, Any]) -> KnativeGatewayOptions:
    """What of the options concerns the gateway of Revisions that batch.

    Raises:
        GnomonError: 400 for several namespaces.

    """
    from gnomon_cli.knative_gateway import KnativeGatewayOptions  # noqa: PLC0415 - as above

    told = {name: options[name] for name in COMMON}
    return KnativeGatewayOptions(**told, namespace=_namespace(options), page_port=options["page_port"])


def _namespace(options: dict[str, Any]) -> str | None:
    match options["namespaces"]:
        case ():
            return None
        case (namespace,):
            return str(namespace)
    raise bad_request("one_namespace", "On Knative, all namespaces are looked after, or one.", "Name one, or start one for each.")
