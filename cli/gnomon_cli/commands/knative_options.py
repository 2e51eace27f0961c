"""What `gnomon serve --platform knative` is told, and which of its two processes it is to be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gnomon_cli.command import option_group
from gnomon_core.errors import bad_request

if TYPE_CHECKING:
    from gnomon_cli.knative import KnativeOptions
    from gnomon_cli.knative_gateway import KnativeGatewayOptions
    from gnomon_platforms.knative.scaling.shadows import ModelOptions

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
        GnomonError: 400 for several namespaces: it looks after all, or after one; for coordinators without models.

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
        GnomonError: 400 for several namespaces.

    """
    from gnomon_cli.knative_gateway import KnativeGatewayOptions  # noqa: PLC0415 - as above

    told = {name: options[name] for name in COMMON}
    return KnativeGatewayOptions(**told, namespace=_namespace(options), page_port=options["page_port"])


def _models(options: dict[str, Any]) -> ModelOptions | None:
    """What Revisions' models are read from; None where nobody said so."""
    from gnomon_cli.model_folder import model_folder, model_repository  # noqa: PLC0415 - as above
    from gnomon_cli.on_kubernetes import node_options  # noqa: PLC0415 - as above
    from gnomon_platforms.knative.scaling.shadows import ModelOptions  # noqa: PLC0415 - as above
    from gnomon_platforms.nodes.models import ServedModels  # noqa: PLC0415 - as above
    from gnomon_profiler.measuring.store import FOLDER as PROFILES  # noqa: PLC0415 - as above

    where, token = (options["models"], options["state"]), options["coordinator_token"]
    if not options["models"]:
        if token is not None:
            raise bad_request("no_models", "Shadows hold blocks of models, and no models were named.", "Say --models, too.")
        return None
    folder = model_folder(*where)
    return ModelOptions(ServedModels(model_repository(*where), folder, folder / PROFILES), node_options(token))


def _namespace(options: dict[str, Any]) -> str | None:
    match options["namespaces"]:
        case ():
            return None
        case (namespace,):
            return str(namespace)
    raise bad_request("one_namespace", "On Knative, all namespaces are looked after, or one.", "Name one, or start one for each.")
