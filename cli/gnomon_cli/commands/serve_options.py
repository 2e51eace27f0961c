"""The options of `gnomon serve`, by subject, and the functions that make values of them.

Keys and the region of AWS Lambda are not among them: boto3 finds those. `gnomon lambda-profile` shares the options of Lambda.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gnomon_cli.command import option_group
from gnomon_cli.options import Bytes, Host, policy_option
from gnomon_core.applications import DeclaredApplication, read_application
from gnomon_core.errors import GnomonError, bad_request
from gnomon_core.functions import DEFAULT_NAMESPACE
from gnomon_core.profiles import Network
from gnomon_platforms.aws_lambda.resources import DEFAULT_CONCURRENCY, MAX_CONCURRENCY, LambdaOptions
from gnomon_platforms.provider.api import DEFAULT_IN_FLIGHT, ProviderOptions
from gnomon_server.options import ClusterOptions
from gnomon_server.platforms import PLATFORMS

if TYPE_CHECKING:
    from gnomon_platforms.knative.autoscaler.shadows import ModelOptions
    from gnomon_platforms.nodes.models import ServedModels
    from gnomon_server.knative_autoscaler import KnativeOptions
    from gnomon_server.knative_gateway import KnativeGatewayOptions


NETWORK_OPTIONS = ("network_gbps", "network_rtt_ms")
CLUSTER_OPTIONS = (*(option.name for option in fields(ClusterOptions) if option.name != "network"), *NETWORK_OPTIONS)


cluster_options = option_group(
    click.option(
        "--kubeconfig",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        default=None,
        help="Kubeconfig of the cluster; default KUBECONFIG, the cluster that this pod runs in, or ~/.kube/config.",
    ),
    click.option(
        "--cluster-wide",
        is_flag=True,
        help='On a cluster, serve every namespace annotated openfaas: "1"; --namespace implies it.',
    ),
    click.option(
        "--advertise",
        type=Host(),
        default="",
        envvar="POD_IP",
        show_envvar=True,
        metavar="HOST",
        help="Host at which the other gateways of the cluster reach this one.",
    ),
    click.option(
        "--coordinator-token",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        default=None,
        help="On a cluster, file with the token of the nodes' coordinators; enables Shadows for functions with a model.",
    ),
    click.option(
        "--models-claim",
        default=None,
        metavar="NAME",
        help="On a cluster, PersistentVolumeClaim with the models, mounted into functions' pods.",
    ),
    click.option(
        "--network-gbps",
        type=float,
        default=None,
        help="On a cluster, bandwidth between nodes; allows a Shadow on another node when the Body's node is full.",
    ),
    click.option(
        "--network-rtt-ms",
        type=float,
        default=0.0,
        help="On a cluster, round-trip time between nodes, with --network-gbps; default 0.",
    ),
    click.option(
        "--peer-secret",
        type=click.Path(dir_okay=False, path_type=Path),
        default=None,
        help="On a cluster, file with the secret by which gateway replicas share the functions; default: one serves.",
    ),
    click.option(
        "--inside-port",
        type=click.IntRange(1, 65535),
        default=8082,
        show_default=True,
        help="On a cluster, port on which gateway replicas reach each other.",
    ),
    click.option(
        "--image-pull-policy",
        type=click.Choice(["Always", "IfNotPresent", "Never"]),
        default="IfNotPresent",
        show_default=True,
        help="On a cluster, when nodes pull functions' images. faas-netes uses Always.",
    ),
    click.option(
        "--pull-secret",
        "pull_secrets",
        multiple=True,
        metavar="NAME",
        help="On a cluster, image pull Secret of all functions, in their namespaces; repeatable.",
    ),
    click.option(
        "--runtime-class",
        default=None,
        metavar="NAME",
        help="On a cluster, the RuntimeClass of functions' pods.",
    ),
)
"""The cluster, this gateway's address in it, and the coordinators of its nodes."""


def read_cluster_options(
    namespaces: Collection[str], *, cluster_wide: bool, network_gbps: float | None, network_rtt_ms: float, **common: Any
) -> ClusterOptions:
    """The options as a value. A namespace beside the default one needs access to the whole cluster.

    Raises:
        GnomonError: 400 `bad_network`.

    """
    wide = cluster_wide or bool(set(namespaces) - {DEFAULT_NAMESPACE})
    return ClusterOptions(cluster_wide=wide, network=declared_network(network_gbps, network_rtt_ms), **common)


def declared_network(gbps: float | None, rtt_ms: float) -> Network | None:
    """The network between nodes that the operator declares; None if none is declared.

    Raises:
        GnomonError: 400 `bad_network`.

    """
    return None if gbps is None else Network.of(gbps, rtt_ms)


KNATIVE_OPTIONS = ("gateway", "page_port")
COMMON = ("kubeconfig", "policies", "host", "port")

knative_options_group = option_group(
    click.option(
        "--gateway",
        is_flag=True,
        help="On knative, run the gateway that buffers requests to Revisions that batch, not the autoscaler class.",
    ),
    click.option(
        "--page-port",
        type=click.IntRange(0, 65535),
        default=9090,
        show_default=True,
        help="With --gateway, port on which the autoscaler class reads the waiting requests.",
    ),
)
"""Options that choose one of the two processes on Knative."""


def knative_options(options: dict[str, Any]) -> KnativeOptions:
    """The options of the autoscaler class, which serves no requests.

    Raises:
        GnomonError: 400 for several namespaces, for coordinators without models; `bad_network`.

    """
    from gnomon_platforms.knative.autoscaler.cluster import AutoscalerOptions  # noqa: PLC0415 - as above
    from gnomon_server.knative_autoscaler import KnativeOptions, within  # noqa: PLC0415 - only who scales Knative imports it

    scaled = AutoscalerOptions(models=_models(options))
    made = KnativeOptions(**{name: options[name] for name in COMMON}, scaled=scaled)
    namespace = _namespace(options)
    return made if namespace is None else within(made, namespace)


def knative_gateway_options(options: dict[str, Any]) -> KnativeGatewayOptions:
    """The options of the gateway of Revisions that batch.

    Raises:
        GnomonError: 400 for several namespaces; `bad_network`.

    """
    from gnomon_server.knative_gateway import KnativeGatewayOptions  # noqa: PLC0415 - as above

    common = {name: options[name] for name in COMMON}
    models = _served(options)
    return KnativeGatewayOptions(**common, namespace=_namespace(options), page_port=options["page_port"], models=models)


def _served(options: dict[str, Any]) -> ServedModels | None:
    """The models that Revisions may name, their profiles and the network between nodes; None without --models."""
    from gnomon_cli.model_repository import model_folder, model_repository  # noqa: PLC0415 - as above
    from gnomon_server.kubernetes import served_models  # noqa: PLC0415 - as above

    network = declared_network(options["network_gbps"], options["network_rtt_ms"])
    where = options["models"], options["state"]
    return served_models(model_repository(*where), model_folder(*where), network) if options["models"] else None


def _models(options: dict[str, Any]) -> ModelOptions | None:
    """The served models, and the options of requests to nodes' coordinators for Shadows of them."""
    from gnomon_platforms.knative.autoscaler.shadows import ModelOptions  # noqa: PLC0415 - as above
    from gnomon_server.kubernetes import node_options  # noqa: PLC0415 - as above

    served, token = _served(options), options["coordinator_token"]
    if served is None and token is not None:
        raise bad_request("no_models", "Shadows hold blocks of models, and --models is missing.", "Add --models.")
    return None if served is None else ModelOptions(served, node_options(token, served))


def _namespace(options: dict[str, Any]) -> str | None:
    match options["namespaces"]:
        case ():
            return None
        case (namespace,):
            return str(namespace)
    raise bad_request("one_namespace", "On Knative, a process serves all namespaces or one.", "Name one, or start one for each.")


MAX_POOL = 64
"""The most empty containers in reserve: each is a process with torch, with some 20 MB of its own."""

listening_options = option_group(
    click.option("--port", type=click.IntRange(0, 65535), default=8080, help="Port; default 8080, 0 takes a free one."),
    click.option(
        "--host", type=Host(), default="127.0.0.1", help="Address to listen on; others than loopback need --basic-auth."
    ),
    click.option(
        "--basic-auth/--no-basic-auth",
        default=False,
        envvar="basic_auth",
        show_envvar=True,
        help="Require a login on control routes.",
    ),
    click.option(
        "--secrets",
        type=click.Path(file_okay=False, path_type=Path),
        default=None,
        envvar="secret_mount_path",
        show_envvar=True,
        help="Folder of basic-auth-user and basic-auth-password; default: in the state folder, made if missing.",
    ),
    click.option(
        "--allowed-host",
        "allowed_hosts",
        multiple=True,
        metavar="NAME",
        help="Host name of a reverse proxy in front; repeatable.",
    ),
    click.option(
        "--max-body",
        "max_body_bytes",
        type=Bytes(1 << 20, 512 << 20),
        default="64Mi",
        metavar="BYTES",
        help="Largest body of a request to a function, from 1Mi to 512Mi; default 64Mi.",
    ),
    click.option(
        "--max-model",
        "max_model_bytes",
        type=Bytes(1 << 20, 1 << 40),
        default="8Gi",
        metavar="BYTES",
        help="Largest model that may be uploaded, from 1Mi; default 8Gi.",
    ),
    click.option("--callback-host", "callback_hosts", multiple=True, metavar="HOST", help="Host that X-Callback-Url may name."),
)
"""Addresses, login and limits of the gateway."""

keeping_options = option_group(
    click.option("--state", default="", metavar="FOLDER", help="State folder, which survives restarts; default .gnomon here."),
    click.option(
        "--models",
        default="",
        metavar="FOLDER",
        help="Model repository, a folder or s3://BUCKET/PREFIX; default: models in the state folder.",
    ),
    click.option(
        "--store",
        default="",
        envvar="GNOMON_STORE",
        show_envvar=True,
        metavar="URL",
        help="Redis for the registered models of applications, redis://HOST:PORT/DATABASE; default: the state folder.",
    ),
)
"""Options for the places of state and models."""

application_options = option_group(
    click.option(
        "--application",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        default=None,
        metavar="FILE",
        help="Serve the application that this file declares: its name, and its models with their accuracies.",
    ),
    click.option(
        "--application-port",
        type=click.IntRange(0, 65535),
        default=None,
        help="A port on all addresses where this application alone is served, as in the container of a function.",
    ),
)
"""An application that a file declares."""


def read_application_options(application: Path | None, application_port: int | None) -> DeclaredApplication | None:
    """The application that the options name.

    Raises:
        GnomonError: 400 for a file that declares none, or a port without one.

    """
    import yaml  # noqa: PLC0415 - most commands need none

    if application is None:
        if application_port is not None:
            raise bad_request(
                "application_missing", "--application-port has no application.", "Name its file: --application FILE."
            )
        return None
    try:
        document = yaml.safe_load(application.read_text(encoding="utf-8-sig"))
        return read_application(document)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise bad_request("invalid_application", f"{application} is not YAML: {' '.join(str(error).split())}.") from None
    except GnomonError as error:
        raise GnomonError(error.status, error.code, f"{application}: {error.message}", error.hint) from None


machine_options = option_group(
    click.option("--cores", type=click.IntRange(min=1), default=None, help="Cores that instances may use; default all."),
    click.option(
        "--pool",
        type=click.IntRange(0, MAX_POOL),
        default=1,
        help="Empty containers kept warm to make Shadows of; more after bursts; default 1. With 0, the first model loads torch.",
    ),
    click.option(
        "--reserved-cores",
        type=click.FloatRange(min=0),
        default=0.0,
        help="Cores reserved for Shadows; a Body gets them only if no other core is free; default 0.",
    ),
    click.option(
        "--lend-cores/--no-lend-cores",
        default=False,
        help="Lend cores that are free to the batches of functions with gnomon/autoscaler: gnomon; default: do not.",
    ),
    click.option(
        "--images",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        default=None,
        help="File with a table of further images and the runtimes that serve them here.",
    ),
    click.option(
        "--convert/--no-convert",
        default=True,
        envvar="GNOMON_CONVERT",
        show_envvar=True,
        help="Convert models of deployed functions for installed engines and profile them, in the background; default: do.",
    ),
)
"""Resources of this machine, for functions that run here."""

serving_options = option_group(
    click.option(
        "--platform",
        type=click.Choice((*PLATFORMS, "knative")),
        default="local",
        help="Where functions run: local (processes of this machine), lambda (AWS), openfaas (pods of a cluster), provider (a "
        "foreign OpenFaaS provider), knative (services of the class gnomon). Default local.",
    ),
    click.option(
        "--namespace",
        "namespaces",
        multiple=True,
        metavar="NAME",
        help="Namespace beside openfaas-fn; on knative, the only namespace served, with a Lease of its own.",
    ),
    policy_option,
    click.option("-v", "--verbose", is_flag=True, help="Log every decision and every change."),
)
"""The platform, namespaces and policies of functions, and the log."""


MAX_IN_FLIGHT = 10_000


adoption_options = option_group(
    click.option(
        "--behind-gateway",
        "behind",
        is_flag=True,
        help="OpenFaaS's own gateway is in front, with this one as its functions_provider_url.",
    ),
    click.option(
        "--provider-url",
        default="",
        envvar="functions_provider_url",
        show_envvar=True,
        metavar="URL",
        help="With --platform provider: address of the provider (faas-netes, faasd, …) that owns functions and replicas.",
    ),
    click.option(
        "--provider-credentials",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        default=None,
        metavar="FOLDER",
        help="Folder of the provider's basic-auth-user and basic-auth-password; default: no credentials.",
    ),
    click.option(
        "--provider-inflight",
        type=click.IntRange(1, MAX_IN_FLIGHT),
        default=DEFAULT_IN_FLIGHT,
        help="Concurrent requests per replica of a function without gnomon/max-inflight or "
        f"max_inflight; default {DEFAULT_IN_FLIGHT}.",
    ),
    click.option(
        "--provider-batch-token",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        default=None,
        metavar="FILE",
        help="File with the value of the secret gnomon-batch-token; Bodies there then get whole batches.",
    ),
)
"""A stock gateway in front of this one, or a foreign provider behind it."""


def read_provider_options(
    *,
    provider_url: str,
    provider_credentials: Path | None,
    provider_inflight: int,
    provider_batch_token: Path | None,
) -> ProviderOptions:
    """The options as a value.

    Raises:
        GnomonError: 400 for a missing address or file.

    """
    url = provider_url.rstrip("/")
    if not url.startswith(("http://", "https://")):
        raise bad_request(
            "provider_missing",
            f"--provider-url is {provider_url[:100]!r}, which is not an address of a provider.",
            "Name it as http://HOST:PORT.",
        )
    user = password = ""
    if provider_credentials is not None:
        user, password = (_text(provider_credentials / name) for name in ("basic-auth-user", "basic-auth-password"))
    token = "" if provider_batch_token is None else _text(provider_batch_token)
    return ProviderOptions(url, user, password, in_flight=provider_inflight, batch_token=token)


def _text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise GnomonError(
            400, "credentials_missing", f"{path} cannot be read: {error}.", "Write the credential into this file."
        ) from None
    if not text:
        raise bad_request("credentials_missing", f"{path} is empty.", "Write the credential into this file.")
    return text


lambda_options = option_group(
    click.option(
        "--lambda-role",
        default="",
        envvar="GNOMON_LAMBDA_ROLE",
        show_envvar=True,
        metavar="ARN",
        help="Role of functions on Lambda.",
    ),
    click.option(
        "--lambda-bucket",
        default="",
        envvar="GNOMON_LAMBDA_BUCKET",
        show_envvar=True,
        metavar="NAME",
        help="Bucket for models and for batches above 6 MB.",
    ),
    click.option(
        "--lambda-image",
        default="",
        envvar="GNOMON_LAMBDA_IMAGE",
        show_envvar=True,
        metavar="URI",
        help="Container image with torch, for models.",
    ),
    click.option(
        "--lambda-concurrency",
        type=click.IntRange(1, MAX_CONCURRENCY),
        default=DEFAULT_CONCURRENCY,
        help=f"Concurrent batches; default {DEFAULT_CONCURRENCY}.",
    ),
)
"""Role, bucket, image and concurrency on Lambda."""


def read_lambda_options(*, lambda_role: str, lambda_bucket: str, lambda_image: str, lambda_concurrency: int) -> LambdaOptions:
    """The options as a value.

    Raises:
        GnomonError: 400 with the option that is missing or wrong.

    """
    return LambdaOptions(lambda_role, lambda_bucket or None, lambda_image or None, concurrency=lambda_concurrency)
