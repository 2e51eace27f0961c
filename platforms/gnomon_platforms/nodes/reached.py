"""Which nodes' coordinators are reached, and what each of them has said last.

reach(node, address) ▶ its state, each time that it is news ▶ `seen(node)`
                     ▶ it does not answer ▶ `lost(node)`: it has no state until it does
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from gnomon_core.background import Background
from gnomon_core.errors import GnomonError
from gnomon_platforms.nodes.client import RETRY_S, UNREACHABLE, NodeClient, State
from gnomon_platforms.nodes.home import BodyPod, no_such_body, no_such_node

if TYPE_CHECKING:
    import aiohttp

_LOG = logging.getLogger("gnomon.nodes")


class ReachedNodes:
    """The nodes with a coordinator.

    `seen` is called when one has said something new, `lost` when it does not answer any more; `epoch` is the leader's, who asks.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        token: str,
        epoch: Callable[[], int],
        seen: Callable[[str], None],
        lost: Callable[[str], None],
    ) -> None:
        self._session, self._token, self._epoch = session, token, epoch
        self._seen, self._tell_lost = seen, lost
        self.clients: dict[str, NodeClient] = {}
        self.states: dict[str, State] = {}
        """Of those that answer."""
        self._silent: set[str] = set()
        """Those that have not been heard yet, nor found not to answer."""
        self._heard = asyncio.Event()
        self._behind = Background()

    def reach(self, node: str, address: str | None) -> None:
        """The coordinator of this node is at this address, or nowhere."""
        known = self.clients.get(node)
        if known is not None and known.address == address:
            return
        if known is not None:
            del self.clients[node]
            self._lost(node)
            self._behind.begin(known.close())
        if address is not None:
            self._silent.add(node)
            client = self.clients[node] = NodeClient(
                self._session,
                address,
                self._token,
                epoch=self._epoch,
                on_state=lambda state: self._said(node, client, state),
                on_lost=lambda: self._said(node, client, None),
            )

    async def heard(self, patience_s: float) -> None:
        """Return when each node that is reached has said what it has, or was found not to answer, or after so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                while self._silent:
                    self._heard.clear()
                    await self._heard.wait()

    def of_body(self, body: BodyPod) -> NodeClient:
        """The coordinator to which this Body has come.

        Raises:
            GnomonError: 409 `no_such_body` where there is none.

        """
        client, state = self.clients.get(body.node), self.states.get(body.node)
        if client is None or state is None:
            raise no_such_body(f"No coordinator is connected on its node {body.node}.")
        if body.uid not in {row["pod_uid"] for row in state["bodies"]}:
            raise no_such_body("Its pod has no volume of driver node.gnomon, or what runs in it is no Body.")
        return client

    def making(self, node: str, body_node: str) -> NodeClient:
        """The coordinator of another node that can make a Shadow of a Body on `body_node`.

        Raises:
            GnomonError: 404 `no_such_node` where none does.

        """
        client, state = self.clients.get(node), self.states.get(node)
        if client is None or state is None or "pair_port" not in state:
            raise no_such_node(node, body_node)
        return client

    def telling(self, shadow_id: str, node: str) -> NodeClient:
        """The coordinator of this node, by which a Shadow or its Body is to hear that it does something else.

        Raises:
            GnomonError: 503 `node_unreachable` where there is none.

        """
        client = self.clients.get(node)
        if client is None:
            text = f"{shadow_id} does what it did: no coordinator is connected on node {node}."
            raise GnomonError(503, UNREACHABLE, text, "Decide again when there is one.")
        return client

    async def end(self, client: NodeClient, shadow_id: str) -> None:
        """End a Shadow on a node, or have it forgotten where it has gone; said again for as long as it may not have been heard.

        Raises:
            GnomonError: what the node refuses; 503 `node_unreachable` where it is not the coordinator there any more.

        """
        while True:
            try:
                await client.wish("DELETE", f"/v1/shadows/{shadow_id}?epoch={self._epoch()}")
            except GnomonError as error:
                if error.code != UNREACHABLE or client not in self.clients.values():
                    raise
                _LOG.warning("%s", error)
                await asyncio.sleep(RETRY_S)
            else:
                return

    async def close(self) -> None:
        """Let go of all."""
        clients, self.clients = list(self.clients.values()), {}
        self.states.clear()
        for client in clients:
            await client.close()
        await self._behind.settled()

    def _said(self, node: str, client: NodeClient, state: State | None) -> None:
        """It has said this, or nothing."""
        if self.clients.get(node) is not client:
            # What was on its way when another took its place, or nobody, is not the node's state.
            return
        if state is None:
            self._lost(node)
            return
        self.states[node] = state
        self._seen(node)
        self._answered(node)

    def _lost(self, node: str) -> None:
        """It does not answer. Its pairs work on; what has become of them is known when it answers again."""
        if self.states.pop(node, None) is not None:
            self._tell_lost(node)
        self._answered(node)

    def _answered(self, node: str) -> None:
        self._silent.discard(node)
        self._heard.set()
