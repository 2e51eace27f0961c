"""What `gnomon serve --platform knative` is told, and which of its two processes it is to be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gnomon_cli.command import option_group
from gnomon_cli.commands.cluster_options import declared_network
from gnomon_core.errors import bad_request

if TYPE_CHECKING:
    from gnomon_cli.knative import KnativeOptions
    from gnomon_cli.knative_gateway import KnativeGatewayOptions
    from gnomon_platforms.knative.scaling.shadows import ModelOptions
    from gnomon_platforms.nodes.models import ServedModels

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
        GnomonError: 400 for several namespaces: it looks after all, or after one; for coordinators without models; `bad_network`.

    """
    from gnomon_cli.knative import KnativeOptions, within  # noqa: PLC0415 - only who scales Knative imports it
    from gnomon_platforms.knative.scaling.autoscaler import AutoscalerOptions  # noqa: PLC0415 - as above

    scaled = AutoscalerOptions(models=_models(options))
    made = KnativeOptions(**{name: options[name] for name in COMMON}, scaled=scaled)
    namespace = _namespace(options)
    return made if namespace is None else within(made, namespace)


def knative_gateway_options(options: dict[str, Any]) -> KnativeGatewayOptions:
    """What of the options concerns the gateway of Revisions that batch.

    Raises:
        GnomonError: 400 for several namespaces; `bad_network`.

    """
    from gnomon_cli.knative_gateway import KnativeGatewayOptions  # noqa: PLC0415 - as above

    told = {name: options[name] for name in COMMON}
    models = _served(options)
    return KnativeGatewayOptions(**told, namespace=_namespace(options), page_port=options["page_port"], models=models)


def _served(options: dict[str, Any]) -> ServedModels | None:
    """The models that Revisions may name, what was measured of them and what lies between nodes; None where nobody said so."""
    from gnomon_cli.model_folder import model_folder, model_repository  # noqa: PLC0415 - as above
    from gnomon_cli.on_kubernetes import served_models  # noqa: PLC0415 - as above

    network = declared_network(options["network_gbps"], options["network_rtt_ms"])
    where = options["models"], options["state"]
    return served_models(model_repository(*where), model_folder(*where), network) if options["models"] else None


def _models(options: dict[str, Any]) -> ModelOptions | None:
    """These, and how nodes' coordinators are spoken to of Shadows."""
    from gnomon_cli.on_kubernetes import node_options  # noqa: PLC0415 - as above
    from gnomon_platforms.knative.scaling.shadows import ModelOptions  # noqa: PLC0415 - as above

    served, token = _served(options), options["coordinator_token"]
    if served is None and token is not None:
        raise bad_request("no_models", "Shadows hold blocks of models, and no models were named.", "Say --models, too.")
    return None if served is None else ModelOptions(served, node_options(token, served))


def _namespace(options: dict[str, Any]) -> str | None:
    match options["namespaces"]:
        case ():
            return None
        case (namespace,):
            return str(namespace)
    raise bad_request("one_namespace", "On Knative, all namespaces are looked after, or one.", "Name one, or start one for each.")
