"""`gnomon serve --platform openfaas`: the cluster as store of functions and as platform, and which gateway process leads.

Functions, secrets and instances are in the cluster, so several processes may serve it; one of them at a time decides and writes.
Gateways with a shared secret share the functions (`replicas`). Without one, all but the leader are standbys: they forward the
requests on their port to the leader, until they lead themselves.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from random import SystemRandom
from urllib.parse import urlsplit

from prometheus_client import Metric
from prometheus_client.registry import Collector

from gnomon_core.addresses import from_this_machine, http_url
from gnomon_core.clock import Clock
from gnomon_core.errors import GnomonError
from gnomon_core.functions import DEFAULT_NAMESPACE
from gnomon_core.interfaces import ModelRepository
from gnomon_core.profiles import Network
from gnomon_gateway.functions.logs import LogReader
from gnomon_gateway.functions.manager import Manager
from gnomon_gateway.http.pass_through import PassThrough, Place
from gnomon_gateway.replicas.peers import PeerSecret, read_peer_secret
from gnomon_platforms.images import BuiltImages
from gnomon_platforms.kubernetes.client import SERVICE_ACCOUNT, ApiMetrics, cluster_figures, connect
from gnomon_platforms.kubernetes.lease import Candidacy, Leader, count_from_now
from gnomon_platforms.kubernetes.objects.pod_template import PodOptions
from gnomon_platforms.kubernetes.ownership import ConfigMapBoard
from gnomon_platforms.kubernetes.resources import LEASES
from gnomon_platforms.kubernetes.writes import Target, Writer
from gnomon_platforms.nodes.coordinators import NodeOptions
from gnomon_platforms.nodes.models import ServedModels
from gnomon_platforms.openfaas.observed import OpenFaasOptions
from gnomon_platforms.openfaas.platform import OpenFaasPlatform
from gnomon_platforms.openfaas.store import KubernetesStore, require_namespace
from gnomon_profiler.measuring.store import FOLDER as PROFILES
from gnomon_profiler.repository import DirectoryRepository
from gnomon_server.options import ServeOptions
from gnomon_server.platforms import Backend
from gnomon_server.store_changes import StoreChanges, Work

LEASE = "gnomon"
GATEWAY_PODS = "app.kubernetes.io/name=gnomon,app.kubernetes.io/component=gateway"
"""The labels of the gateway's pods, among which functions are shared."""
_LOG = logging.getLogger("gnomon")


class ClusterBackend(Backend):
    """Functions are Deployments of a Kubernetes cluster.

    `begin` returns when this process leads; until then the process is a standby on its host and port. If replicas share the
    functions, `begin` returns at once.
    """

    orchestration = "kubernetes"
    isolates_users = False
    place = "kubernetes"

    def __init__(self, serve: ServeOptions, repository: ModelRepository, built: BuiltImages, clock: Clock) -> None:
        del built  # functions bring their images along
        assert serve.cluster is not None
        options = self._options = serve.cluster
        self._api = connect(options.kubeconfig)
        self.shares = options.peer_secret is not None and options.peer_secret.exists()
        # Without sharing, batches carry the term's epoch, and ownership maps, should functions be shared later, begin at 1.
        self._candidacy = Candidacy(
            self._api,
            Target(LEASES, lease_namespace(), LEASE),
            clock,
            SystemRandom(),
            counts_from=count_from_now if self.shares else lambda: 0,
        )
        tenure = self._candidacy.tenure
        namespace = None if options.cluster_wide else DEFAULT_NAMESPACE
        models = served_models(repository, serve.model_folder, options.network)
        nodes = node_options(options.coordinator_token, models)
        pods = PodOptions(
            coordinated=nodes is not None,
            models_claim=options.models_claim,
            image_pull_policy=options.image_pull_policy,
            pull_secrets=options.pull_secrets,
            runtime_class=options.runtime_class,
        )
        self.store: KubernetesStore = KubernetesStore(self._api, namespace=namespace, pods=pods, fence=tenure.check, clock=clock)
        self.platform: OpenFaasPlatform = OpenFaasPlatform(
            self._api,
            OpenFaasOptions(
                namespace=namespace,
                pods=pods,
                stored=True,
                models=models,
                nodes=nodes,
            ),
            fence=tenure.check,
            clock=clock,
            epoch=lambda: tenure.epoch,
            following=self.shares,
        )
        self._clock = clock
        self._board_writers: list[Writer] = []
        self._host = serve.host
        self._standby = PassThrough(serve.host, serve.port, self._leaders_place)
        self._changes = StoreChanges(clock)

    @property
    def stored_logs(self) -> LogReader:
        return self.platform.logs

    @property
    def leader(self) -> Leader:
        """The candidate for the Lease; `leader.seen` says who leads and where that process is reached."""
        return self._candidacy.leader

    async def begin(self, port: int) -> int:
        """Campaign for the Lease and forward requests to the leader; return once this process leads, with the port free again.

        Raises:
            GnomonError: the API server refuses a request.

        """
        del port  # the standby listens on it, and knows the actual port if 0 was given
        if not in_pod():
            # In a cluster the manifests create this namespace. The Lease is in it, so no leader could create it.
            await require_namespace(self._candidacy.writer)
        if not self.shares:
            await self._standby.start()
        await self._candidacy.start(http_url(self._advertised, self._standby.port))
        if not self.shares:
            if not self.leader.leading.is_set():
                print(f"Gnomon stands by on port {self._standby.port}, for {self.leader_is}.", flush=True)
            await self.leader.leading.wait()
            await self._catch_up()
        return self._standby.port

    async def _catch_up(self) -> None:
        """Read the previous leader's objects. From now on only this process writes: older versions that arrive late are ignored.

        Raises:
            GnomonError: 503 `kubernetes_…`.

        """
        await asyncio.to_thread(self.store.catch_up)

    async def lead(self) -> None:
        await self._catch_up()
        await self.platform.lead()

    def collectors(self) -> Iterable[Collector]:
        return (ClusterCollector(self),)

    @property
    def api_metrics(self) -> ApiMetrics:
        """Counts of requests to the API server by result."""
        return self._api.metrics

    def leads(self) -> bool:
        """Return whether this process is the leader and may write."""
        return self._candidacy.leads

    def epoch(self) -> int:
        """The epoch of this term: the fencing token of batches if nothing is shared. An instance may have seen a later one."""
        return self._candidacy.epoch

    def board(self) -> ConfigMapBoard:
        """The ConfigMaps with the ownership map: the leader publishes it, replicas read it. The caller starts and stops it."""
        writer = Writer(self._api, self._clock, SystemRandom(), self._candidacy.tenure.check)
        self._board_writers.append(writer)
        return ConfigMapBoard(self._api, writer, lease_namespace(), GATEWAY_PODS, port=self._options.inside_port)

    def peer_secret(self) -> PeerSecret:
        """The shared secret by which gateways that share functions authenticate to each other.

        Raises:
            GnomonError: 500 `peer_secret_missing` or `peer_secret_unfit`.

        """
        assert self._options.peer_secret is not None
        return read_peer_secret(self._options.peer_secret)

    @property
    def inside(self) -> tuple[str, int]:
        """The host and port at which the other replicas reach this one."""
        return self._advertised, self._options.inside_port

    async def release_port(self) -> None:
        """Hand the port over to the gateway's server, with the requests that wait for a leader."""
        await self._standby.stop_listening()

    def follow(self, manager: Manager, namespaces: Callable[[], Work]) -> None:
        """Follow changes by others: `kubectl delete deployment` removes a function."""
        self._changes.follow(self.store, manager.follow, namespaces)

    def leave(self) -> None:
        self.leader.leave()

    async def end(self) -> None:
        """Release the Lease and close the connections, after the last write."""
        await self._standby.stop()
        await self._candidacy.stop()
        await asyncio.to_thread(self.store.close)
        for writer in self._board_writers:
            writer.close()
        self._api.close()

    @property
    def leader_is(self) -> str:
        """The leader's identity and address as text."""
        seen = self.leader.seen
        return "no process yet" if seen is None else f"{seen.holder} ({seen.address or 'address unknown'})"

    @property
    def _advertised(self) -> str:
        return self._options.advertise or from_this_machine(self._host)

    def _leaders_place(self) -> Place | None:
        """The leader's host and port: this process's own once it leads; None if unknown."""
        if self.leads():
            return self._advertised, self._standby.port
        seen = self.leader.seen
        if seen is None or not seen.address or seen.address == self.leader.address:
            return None
        address = urlsplit(seen.address)
        return (address.hostname, address.port) if address.hostname and address.port else None


class ClusterCollector(Collector):
    """The Prometheus collector of this gateway's leadership and its requests to the API server."""

    def __init__(self, cluster: ClusterBackend) -> None:
        self._cluster = cluster

    def collect(self) -> Iterator[Metric]:
        """The metrics."""
        yield from cluster_figures(self._cluster.api_metrics, leads=self._cluster.leads())


def served_models(repository: ModelRepository, folder: Path, network: Network | None) -> ServedModels:
    """The models that functions may name, with the measurements in this folder, and the network between nodes."""
    on_nodes = folder if isinstance(repository, DirectoryRepository) else None
    return ServedModels(repository, on_nodes, folder / PROFILES, network=network)


def node_options(token_file: Path | None, models: ServedModels | None) -> NodeOptions | None:
    """The options for Shadow requests to nodes' coordinators, with the token in this file; None without a token.

    Raises:
        GnomonError: 400 `token_empty`.

    """
    if token_file is None:
        return None
    token = token_file.read_text().strip()
    if not token:
        raise GnomonError(
            400,
            "token_empty",
            f"{token_file} is empty.",
            "Write the coordinators' token into it.",
        )
    if models is not None and not models.on_nodes:
        _LOG.warning("Shadows are disabled: the nodes' pools read models from a folder, but this repository is remote")
    return NodeOptions(token)


def in_pod() -> bool:
    """Return whether this process runs in a pod."""
    return "POD_NAMESPACE" in os.environ or SERVICE_ACCOUNT.exists()


def lease_namespace() -> str:
    """The namespace of the Lease: that of the gateway's pod, or that of the functions for a gateway outside the cluster."""
    named = os.environ.get("POD_NAMESPACE")
    file = SERVICE_ACCOUNT.parent / "namespace"
    return named or (file.read_text().strip() if file.exists() else DEFAULT_NAMESPACE)
