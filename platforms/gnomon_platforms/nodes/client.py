"""HTTP client of the node coordinators: one watch of the whole state per node, and requests for Shadows.

    NodeClient                GET /v1/state (long poll) ─▶ on_state(state) ─▶ again; after an error: on_lost(), back-off, again
    CoordinatorConnections    one NodeClient per node, and the last state of each node that answers

Requests carry a bearer token (`gnomon_coordinator.node.api` has the routes). Each request carries the leader's epoch, so that
a node refuses requests of an earlier leader from the first request of the new one on. A coordinator may restart at any time: its
`incarnation` changes then, and every answer is the whole state, never a difference.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from gnomon_core.background import Background
from gnomon_core.coordination import NODES_NAMESPACE
from gnomon_core.errors import GnomonError
from gnomon_platforms.nodes.node_shadow import BodyPod, State, no_such_body, no_such_node

if TYPE_CHECKING:
    import aiohttp

WAIT_S = 30
RETRY_S = 1.0
REQUEST_TIMEOUT_S = 5.0
OK = 200
UNREACHABLE = "node_unreachable"

_LOG = logging.getLogger("gnomon.nodes")


class CoordinatorConnections:
    """The connections to the coordinators of all nodes.

    `on_state` is called with the node after each new state, `on_lost` when a node stops answering; `epoch` is the leader's.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        token: str,
        epoch: Callable[[], int],
        on_state: Callable[[str], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self._session, self._token, self._epoch = session, token, epoch
        self._on_state, self._on_lost = on_state, on_lost
        self.clients: dict[str, NodeClient] = {}
        """The client of each node whose coordinator's address is known, whether the coordinator answers or not."""
        self.states: dict[str, State] = {}
        """The last state of each coordinator that answers, by node."""
        self._pending: set[str] = set()
        """Nodes that have neither sent a first state nor failed to answer yet."""
        self._answer = asyncio.Event()
        self._background = Background()

    def set_address(self, node: str, address: str | None) -> None:
        """Connect to the coordinator of a node at this address; None disconnects it."""
        connected = self.clients.get(node)
        if connected is not None and connected.address == address:
            return
        if connected is not None:
            del self.clients[node]
            self._disconnected(node)
            self._background.begin(connected.close())
        if address is not None:
            self._pending.add(node)
            client = self.clients[node] = NodeClient(
                self._session,
                address,
                self._token,
                epoch=self._epoch,
                on_state=lambda state: self._received(node, client, state),
                on_lost=lambda: self._received(node, client, None),
            )

    async def wait_first_states(self, timeout_s: float) -> None:
        """Wait until each connected node has sent its first state or failed to answer, at most this long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._pending:
                    self._answer.clear()
                    await self._answer.wait()

    def of_body(self, body: BodyPod) -> NodeClient:
        """Return the client of the coordinator to which this Body is connected.

        Raises:
            GnomonError: 409 `no_such_body` where there is none.

        """
        client, state = self.clients.get(body.node), self.states.get(body.node)
        if client is None or state is None:
            raise no_such_body(f"No coordinator is connected on the Body's node {body.node}.")
        if body.uid not in {row["pod_uid"] for row in state["bodies"]}:
            raise no_such_body("The Body's pod has no volume of driver node.gnomon, or runs no Body.")
        return client

    def of_remote_node(self, node: str, body_node: str) -> NodeClient:
        """Return the client of another node that can make a Shadow for a Body on `body_node`.

        Raises:
            GnomonError: 404 `no_such_node` where the node has no coordinator that listens for remote Bodies.

        """
        client, state = self.clients.get(node), self.states.get(node)
        if client is None or state is None or "pair_port" not in state:
            raise no_such_node(node, body_node)
        return client

    def of_node(self, node: str, shadow_id: str) -> NodeClient:
        """Return the client of a node through which this Shadow, or its Body, is to be changed.

        Raises:
            GnomonError: 503 `node_unreachable` where no coordinator is connected on the node.

        """
        client = self.clients.get(node)
        if client is None:
            text = f"Shadow {shadow_id} cannot be changed: no coordinator is connected on node {node}."
            raise GnomonError(503, UNREACHABLE, text, "Decide again when it is connected.")
        return client

    async def end_shadow(self, client: NodeClient, shadow_id: str) -> None:
        """End a Shadow on a node, or let the node forget one that has ended; retried while the node is unreachable.

        Raises:
            GnomonError: what the node refuses; 503 `node_unreachable` once this client is no longer the node's.

        """
        while True:
            try:
                await client.request("DELETE", f"/v1/shadows/{shadow_id}?epoch={self._epoch()}")
            except GnomonError as error:
                if error.code != UNREACHABLE or client not in self.clients.values():
                    raise
                _LOG.warning("Ending Shadow %s failed, retry in %g s: %s", shadow_id, RETRY_S, error)
                await asyncio.sleep(RETRY_S)
            else:
                return

    async def close(self) -> None:
        """Close all connections."""
        clients, self.clients = list(self.clients.values()), {}
        self.states.clear()
        for client in clients:
            await client.close()
        await self._background.settled()

    def _received(self, node: str, client: NodeClient, state: State | None) -> None:
        """Store a state that a client received; None when the coordinator did not answer."""
        if self.clients.get(node) is not client:
            # An answer may still arrive from a client that has been replaced or closed: it is not the node's state any more.
            return
        if state is None:
            self._disconnected(node)
            return
        self.states[node] = state
        self._on_state(node)
        self._answered(node)

    def _disconnected(self, node: str) -> None:
        """Drop the state of a node. Pairs keep working meanwhile; the next state says what has become of them."""
        if self.states.pop(node, None) is not None:
            self._on_lost(node)
        self._answered(node)

    def _answered(self, node: str) -> None:
        self._pending.discard(node)
        self._answer.set()


class NodeClient:
    """Client of the coordinator at one address.

    `on_state` receives each state that differs from the last one, `on_lost` is called when the coordinator does not answer.
    `epoch` is the leader's.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        address: str,
        token: str,
        *,
        epoch: Callable[[], int],
        on_state: Callable[[State], None],
        on_lost: Callable[[], None],
    ) -> None:
        self.address = address
        self._session = session
        self._headers = {"Authorization": f"Bearer {token}"}
        self._epoch = epoch
        self._on_state = on_state
        self._on_lost = on_lost
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def close(self) -> None:
        """Stop the watch."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def request(self, method: str, path: str, document: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """Send one request, and return the answer's document.

        Raises:
            GnomonError: what the node refuses; 503 `node_unreachable` where it does not answer.

        """
        import aiohttp  # noqa: PLC0415 - only platforms with instances elsewhere need it

        timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
        try:
            async with self._session.request(
                method, self.address + path, json=document, headers=self._headers, timeout=timeout
            ) as answer:
                text = await answer.text()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            why = f"The coordinator at {self.address} does not answer: {type(error).__name__} {error}."
            raise GnomonError(503, UNREACHABLE, why, f"kubectl logs -n {NODES_NAMESPACE} daemonset/coordinator") from error
        if answer.status != OK:
            raise _refusal(answer.status, text)
        reply: dict[str, Any] = json.loads(text)
        return reply

    async def _watch(self) -> None:
        import aiohttp  # noqa: PLC0415 - as above

        incarnation, version = "", 0
        timeout = aiohttp.ClientTimeout(total=2 * WAIT_S)
        while True:
            known_state = f"incarnation={incarnation}&version={version}&wait_s={WAIT_S}"
            url = f"{self.address}/v1/state?{known_state}&epoch={self._epoch()}"
            try:
                async with self._session.get(url, headers=self._headers, timeout=timeout) as answer:
                    text = await answer.text()
                if answer.status != OK:
                    raise _refusal(answer.status, text)
                state = json.loads(text)
                latest = (str(state["incarnation"]), int(state["version"]))
                if latest != (incarnation, version):
                    self._on_state(state)
                    incarnation, version = latest
            except (aiohttp.ClientError, OSError, GnomonError, ValueError, KeyError, TypeError, OverflowError) as error:
                _LOG.warning(
                    "Watching the coordinator at %s failed, retry in %g s: %s: %s",
                    self.address, RETRY_S, type(error).__name__, error,
                )  # fmt: skip
                self._on_lost()
                # on_lost dropped the state, so the next answer must bring it even if nothing has changed since.
                incarnation, version = "", 0
                await asyncio.sleep(RETRY_S)


def _refusal(status: int, text: str) -> GnomonError:
    try:
        document = json.loads(text)["error"]
        return GnomonError(status, str(document["code"]), str(document["message"]), str(document.get("hint", "")))
    except (ValueError, KeyError, TypeError):
        return GnomonError(status, "node_refuses", text[:200] or f"It answers {status}.")
