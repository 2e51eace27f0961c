"""What `gnomon serve` is told about a Kubernetes cluster."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from gnomon_cli.command import option_group
from gnomon_cli.options import Host
from gnomon_cli.serve_options import ClusterOptions
from gnomon_core.functions import DEFAULT_NAMESPACE
from gnomon_core.profiles import Network

NETWORK_OPTIONS = ("network_gbps", "network_rtt_ms")
CLUSTER_OPTIONS = (*(one.name for one in fields(ClusterOptions) if one.name != "network"), *NETWORK_OPTIONS)


cluster_options = option_group(
    click.option(
        "--kubeconfig",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        default=None,
        help="The cluster of openfaas or knative; default KUBECONFIG, the one that we run in, or ~/.kube/config.",
    ),
    click.option(
        "--cluster-wide",
        is_flag=True,
        help='On a cluster, look after every namespace that is marked openfaas: "1"; so does --namespace.',
    ),
    click.option(
        "--advertise",
        type=Host(),
        default="",
        envvar="POD_IP",
        show_envvar=True,
        metavar="HOST",
        help="Where other gateways of a cluster reach this one.",
    ),
    click.option(
        "--coordinator-token",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        default=None,
        help="On a cluster, the file with the token of its nodes' coordinators: functions with a model may have Shadows.",
    ),
    click.option(
        "--models-claim",
        default=None,
        metavar="NAME",
        help="On a cluster, the PersistentVolumeClaim that functions' pods find models in.",
    ),
    click.option(
        "--network-gbps",
        type=float,
        default=None,
        help="On a cluster, the bandwidth between nodes: a Body whose node is full may then have its Shadow on another.",
    ),
    click.option(
        "--network-rtt-ms",
        type=float,
        default=0.0,
        help="On a cluster, there and back between nodes, with --network-gbps; default 0.",
    ),
    click.option(
        "--peer-secret",
        type=click.Path(dir_okay=False, path_type=Path),
        default=None,
        help="On a cluster, the file with the secret by which its gateways share the functions; without it one serves.",
    ),
    click.option(
        "--inside-port",
        type=click.IntRange(1, 65535),
        default=8082,
        show_default=True,
        help="On a cluster, where gateways that share the functions reach each other.",
    ),
    click.option(
        "--image-pull-policy",
        type=click.Choice(["Always", "IfNotPresent", "Never"]),
        default="IfNotPresent",
        show_default=True,
        help="On a cluster, when nodes pull functions' images. faas-netes' is Always.",
    ),
    click.option(
        "--pull-secret",
        "pull_secrets",
        multiple=True,
        metavar="NAME",
        help="On a cluster, a Secret by which nodes pull all functions' images, in their namespaces; may be given again.",
    ),
    click.option(
        "--runtime-class",
        default=None,
        metavar="NAME",
        help="On a cluster, the RuntimeClass of functions' pods.",
    ),
)
"""Which cluster, where this gateway is reached, and how its nodes' coordinators are spoken to."""


def read_cluster_options(
    namespaces: Collection[str], *, cluster_wide: bool, network_gbps: float | None, network_rtt_ms: float, **told: Any
) -> ClusterOptions:
    """The options as a value: those that are `told` have their fields' names. A namespace beside the default one is to be seen.

    Raises:
        GnomonError: 400 `bad_network`.

    """
    wide = cluster_wide or bool(set(namespaces) - {DEFAULT_NAMESPACE})
    return ClusterOptions(cluster_wide=wide, network=declared_network(network_gbps, network_rtt_ms), **told)


def declared_network(gbps: float | None, rtt_ms: float) -> Network | None:
    """What an operator says to lie between nodes; None where nobody has.

    Raises:
        GnomonError: 400 `bad_network`.

    """
    return None if gbps is None else Network.of(gbps, rtt_ms)
