"""`gnomon serve --platform openfaas`: the cluster as store of functions and as platform, and which gateway process leads.

Functions, secrets and instances are in the cluster, so several processes may serve it; one of them at a time decides and writes.
Those that have a secret in common share the functions (`replicas`). The others stand by: they pass on to it what comes to their
port, until they lead themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from random import SystemRandom
from urllib.parse import urlsplit

from gnomon_cli.commands.serve_options import ClusterOptions, ServeOptions
from gnomon_cli.following import Following, Work
from gnomon_core.addresses import from_this_machine, http_url
from gnomon_core.clock import Clock
from gnomon_core.errors import GnomonError
from gnomon_core.functions import DEFAULT_NAMESPACE, FunctionKey
from gnomon_core.interfaces import ModelRepository
from gnomon_core.profiles import Network
from gnomon_gateway.http.pass_through import PassThrough, Place
from gnomon_gateway.replicas.peer_secret import PeerSecret, read_peer_secret
from gnomon_platforms.kubernetes.client import SERVICE_ACCOUNT, Asked, connect
from gnomon_platforms.kubernetes.lease import Leader, Tenure, Watchdog, count_from_now, identity_of_process
from gnomon_platforms.kubernetes.objects.pod_template import PodOptions
from gnomon_platforms.kubernetes.ownership import ConfigMapBoard
from gnomon_platforms.kubernetes.resources import LEASES
from gnomon_platforms.kubernetes.writes import Target, Writer
from gnomon_platforms.nodes.models import ServedModels
from gnomon_platforms.nodes.on_nodes import NodeOptions
from gnomon_platforms.openfaas.options import OpenFaasOptions
from gnomon_platforms.openfaas.platform import OpenFaasPlatform
from gnomon_platforms.openfaas.store import KubernetesStore, require_namespace
from gnomon_profiler.measuring.store import FOLDER as PROFILES
from gnomon_profiler.repository import DirectoryRepository

LEASE = "gnomon"
GATEWAY_PODS = "app.kubernetes.io/name=gnomon,app.kubernetes.io/component=gateway"
"""The labels of the gateway's pods, among which functions are shared."""
_LOG = logging.getLogger("gnomon")


class OnKubernetes:
    """What is made of a cluster.

    `begin` returns when this process leads; until then it stands by on its host and port. Where replicas share the functions
    it returns at once.
    """

    def __init__(self, serve: ServeOptions, options: ClusterOptions, repository: ModelRepository, clock: Clock) -> None:
        self._options = options
        self._api = connect(options.kubeconfig)
        self._tenure = Tenure()
        self._watchdog = Watchdog(self._tenure)
        self._writer = Writer(self._api, clock, SystemRandom())
        lease = Target(LEASES, lease_namespace(), LEASE)
        self.shares = options.peer_secret is not None and options.peer_secret.exists()
        """Whether the functions are shared with other replicas."""
        # Batches of one that shares nothing bear its term's epoch, and maps, should it ever share, begin at 1.
        counts_from = count_from_now if self.shares else lambda: 0
        self.leader = Leader(self._writer, lease, identity_of_process(), self._tenure, clock, counts_from=counts_from)
        """Who leads, and where they are reached: `leader.seen`."""
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
        self.store = KubernetesStore(self._api, namespace=namespace, pods=pods, fence=self._tenure.check, clock=clock)
        self.platform = OpenFaasPlatform(
            self._api,
            OpenFaasOptions(
                namespace=namespace,
                pods=pods,
                stored=True,
                models=models,
                nodes=nodes,
            ),
            fence=self._tenure.check,
            clock=clock,
            epoch=lambda: self._tenure.epoch,
            following=self.shares,
        )
        self._clock = clock
        self._published: list[Writer] = []
        self._host = serve.host
        self._standby = PassThrough(serve.host, serve.port, self._place)
        self._standing: asyncio.Task[None] | None = None
        self._following = Following()

    @property
    def port(self) -> int:
        """The port that we stand by on, and will serve on."""
        return self._standby.port

    async def begin(self) -> None:
        """Stand for the Lease, pass on what comes until we have it, and return when we do. The port is free then.

        Raises:
            GnomonError: what the API server refuses.

        """
        if not in_pod():
            # In a cluster it is made with the rest. The Lease is in it, so nobody leads who could be asked first.
            await require_namespace(self._writer)
        if not self.shares:
            await self._standby.start()
        self.leader.address = http_url(self._advertised, self.port)
        self._watchdog.start()
        await self.leader.attempt()
        self._standing = asyncio.create_task(self.leader.run())
        if self.shares:
            return
        if not self.leader.leading.is_set():
            print(f"Gnomon stands by on port {self.port}, for {self.leader_is}.", flush=True)
        await self.leader.leading.wait()
        await self.catch_up()

    async def catch_up(self) -> None:
        """Know what the leader before has stored: from now on only we write, and what is heard late is taken for older than ours.

        Raises:
            GnomonError: 503 `kubernetes_…`.

        """
        await asyncio.to_thread(self.store.catch_up)

    @property
    def asked(self) -> Asked:
        """What was asked of the API server, and how it was answered."""
        return self._api.asked

    def leads(self) -> bool:
        """Whether this process may write."""
        return self._tenure.leading

    def epoch(self) -> int:
        """That of our term, which is also that of our batches where we share nothing: an instance may claim a later one."""
        return max(1, self._tenure.epoch)

    def board(self) -> ConfigMapBoard:
        """Where replicas read, and their leader publishes, who owns which functions. It is started and stopped by who asks."""
        writer = Writer(self._api, self._clock, SystemRandom(), self._tenure.check)
        self._published.append(writer)
        return ConfigMapBoard(self._api, writer, lease_namespace(), GATEWAY_PODS, port=self._options.inside_port)

    def peer_secret(self) -> PeerSecret:
        """What gateways that share the functions show each other.

        Raises:
            GnomonError: 500 `peer_secret_missing` or `peer_secret_unfit`.

        """
        assert self._options.peer_secret is not None
        return read_peer_secret(self._options.peer_secret)

    @property
    def inside(self) -> tuple[str, int]:
        """Where the other replicas reach this one."""
        return self._advertised, self._options.inside_port

    async def take_port(self) -> None:
        """Leave the port to the gateway's server, which is about to listen. What waits for a leader comes to that."""
        await self._standby.stop_listening()

    def follow(self, function: Callable[[FunctionKey], Work], namespaces: Callable[[], Work]) -> None:
        """Begin one of these whenever a function, or a namespace, has changed: `kubectl delete deployment` removes a function."""
        self._following.begin(self.store, function, namespaces)

    async def end(self) -> None:
        """Let another lead, and look no longer. Nothing of ours is being written any more."""
        await self._standby.stop()
        if self._standing is not None:
            self._standing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._standing
            await self.leader.release()
        self._watchdog.stop()
        await asyncio.to_thread(self.store.close)
        for writer in (self._writer, *self._published):
            writer.close()
        self._api.close()

    @property
    def leader_is(self) -> str:
        """Who leads, in words."""
        seen = self.leader.seen
        return "nobody yet" if seen is None else f"{seen.holder} ({seen.address or 'whose address nobody knows'})"

    @property
    def _advertised(self) -> str:
        return self._options.advertise or from_this_machine(self._host)

    def _place(self) -> Place | None:
        """Where the leader is reached; ourselves at last."""
        if self._tenure.leading:
            return self._advertised, self.port
        seen = self.leader.seen
        if seen is None or not seen.address or seen.address == self.leader.address:
            return None
        address = urlsplit(seen.address)
        return (address.hostname, address.port) if address.hostname and address.port else None


def served_models(repository: ModelRepository, folder: Path, network: Network | None) -> ServedModels:
    """The models that functions may name, with what was measured of them, in this folder, and what lies between nodes."""
    on_nodes = folder if isinstance(repository, DirectoryRepository) else None
    return ServedModels(repository, on_nodes, folder / PROFILES, network=network)


def node_options(token_file: Path | None, models: ServedModels | None) -> NodeOptions | None:
    """How nodes' coordinators are spoken to of Shadows with these models, by the token in this file; None where they are not.

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
        _LOG.warning("no Shadows are made: nodes' pools read models from a folder, and this repository is elsewhere")
    return NodeOptions(token)


def in_pod() -> bool:
    """Whether this process is a pod's."""
    return "POD_NAMESPACE" in os.environ or SERVICE_ACCOUNT.exists()


def lease_namespace() -> str:
    """Where the Lease is: beside the gateway's pod, or beside the functions for one that runs elsewhere."""
    named = os.environ.get("POD_NAMESPACE")
    file = SERVICE_ACCOUNT.parent / "namespace"
    return named or (file.read_text().strip() if file.exists() else DEFAULT_NAMESPACE)
