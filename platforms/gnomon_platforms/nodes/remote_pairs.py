"""Remote pairs: a Body and a Shadow on two nodes, and the order of the requests to the two coordinators.

    create ▶ the Shadow's node makes it ─ ready, with a token ▶ the Body's node connects the Body to the Shadow ─ paired …
    destroy ▶ the Body's node: the Body works without it ─ gone ▶ the Shadow's node ends it ─ gone
    one half ends by itself ▶ the other half is ended

Each step follows from the last state of both nodes, so that a new leader that adopts a Shadow continues with the same steps. An
unreachable Body's node delays the beginning of a pair only: a Shadow to which no Body connects ends by itself, as one does whose
Body disconnects.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from gnomon_core.addresses import http_url
from gnomon_core.background import Background
from gnomon_core.fleet import InstanceState
from gnomon_core.pairs import Pair
from gnomon_platforms.nodes.client import CoordinatorConnections, NodeClient
from gnomon_platforms.nodes.node_shadow import (
    ALIVE,
    FunctionModel,
    NodeShadow,
    Row,
    ShadowRequests,
    State,
    pair_of,
    should_contain,
    version_of,
)


class RemotePairs:
    """Takes each remote Shadow through its steps. `set_pair` stores what a Shadow computes for its Body."""

    def __init__(
        self,
        connections: CoordinatorConnections,
        background: Background,
        requests: ShadowRequests,
        set_pair: Callable[[NodeShadow, Pair | None], None],
    ) -> None:
        self._connections, self._background = connections, background
        self._requests, self._set_pair = requests, set_pair

    def reconcile(self, shadow: NodeShadow) -> None:
        """Take the next step, if the last states of the two nodes allow one."""
        state = self._connections.states.get(shadow.body_node or "")
        client = self._connections.clients.get(shadow.body_node or "")
        if state is None or client is None:
            return
        row = _row(state, shadow)
        if row is None and should_contain(state, shadow.paired_since):
            self.end_own_half(shadow, "the coordinator of its Body's node was started anew")
        elif row is None:
            self._introduce(shadow, client)
        elif row["state"] == "gone":
            self._end(client, shadow)
            self.end_own_half(shadow, str(row["reason"]))
        else:
            # A row without a request of ours: an earlier leader has introduced the two.
            shadow.introduced, shadow.paired_since = True, shadow.paired_since or version_of(state)
            self._set_pair(shadow, pair_of(row, shadow.instance.node))
            if shadow.instance.state is InstanceState.DRAINING and row["state"] in ALIVE:
                # The request that ended the pair was lost.
                self._end(client, shadow)

    def _introduce(self, shadow: NodeShadow, body_client: NodeClient) -> None:
        """Ask the Body's node, once, to connect the Body to a Shadow that is ready."""
        state = self._connections.states.get(shadow.instance.node)
        client = self._connections.clients.get(shadow.instance.node)
        row = None if state is None else _row(state, shadow)
        if row is None or state is None or client is None:
            return
        if shadow.instance.state is InstanceState.DRAINING:
            if row["state"] in ALIVE:
                # The request that ended the Shadow was lost.
                self._end(client, shadow)
            return
        if row["state"] != "ready" or shadow.introduced:
            return
        shadow.introduced = True
        # The Shadow takes no memory on the Body's node.
        endpoint = {"url": pair_url(client.address, state), "token": row["token"], "memory_bytes": 0}
        self._background.begin(self._send_introduction(shadow, body_client, endpoint))

    async def _send_introduction(self, shadow: NodeShadow, body_client: NodeClient, endpoint: dict[str, Any]) -> None:
        try:
            document = await self._requests.introduction(shadow) | endpoint
            answer = await body_client.request("PUT", f"/v1/shadows/{shadow.instance.id}", document)
        except Exception as error:
            self.end_own_half(shadow, str(error))
            raise
        shadow.paired_since = version_of(answer)

    async def change(self, shadow: NodeShadow, model: FunctionModel, pair: Pair) -> None:
        """Change what a Shadow computes: its own node changes its cores, the Body's node its share of each batch.

        Raises:
            GnomonError: what one of the two refuses; 503 `node_unreachable` where one is not connected: then neither is asked.

        """
        path = f"/v1/shadows/{shadow.instance.id}"
        client = self._connections.of_node(shadow.instance.node, shadow.instance.id)
        body_client = self._connections.of_node(shadow.body_node or "", shadow.instance.id)
        await client.request("PATCH", path, self._requests.change(model, shadow.loaded(pair), shadow.instance.memory_bytes))
        if not shadow.introduced:
            # The introduction, which is still to come, carries the new pair.
            shadow.instance = replace(shadow.instance, pair=pair)
        await body_client.request("PATCH", path, self._requests.change(model, pair, 0))

    def end_body_half(self, shadow: NodeShadow) -> bool:
        """Let the Body continue without this Shadow, which ends after that; False where the Body's node has nothing to end."""
        state = self._connections.states.get(shadow.body_node or "")
        client = self._connections.clients.get(shadow.body_node or "")
        row = None if state is None else _row(state, shadow)
        if client is None or row is None or row["state"] not in ALIVE:
            return False
        self._end(client, shadow)
        return True

    def end_own_half(self, shadow: NodeShadow, reason: str) -> None:
        """End a Shadow on its own node: its Body works without it, or the Body's node is not reachable."""
        if shadow.end_requested:
            return
        client = self._connections.clients.get(shadow.instance.node)
        shadow.end_requested, shadow.end_reason = client is not None, shadow.end_reason or reason
        shadow.instance = replace(shadow.instance, state=InstanceState.DRAINING)
        self._set_pair(shadow, None)
        if client is not None:
            self._end(client, shadow)

    def gone(self, shadow: NodeShadow) -> None:
        """End the Body's half of a pair whose Shadow has ended."""
        client = self._connections.clients.get(shadow.body_node or "")
        if client is not None and shadow.introduced:
            self._end(client, shadow)

    def _end(self, client: NodeClient, shadow: NodeShadow) -> None:
        self._background.begin(self._connections.end_shadow(client, shadow.instance.id))


def pair_url(address: str, state: State) -> str:
    """Return where Bodies of other nodes connect to Shadows of the node whose coordinator is at this address."""
    return http_url(urlsplit(address).hostname or "", state["pair_port"])


def _row(state: State, shadow: NodeShadow) -> Row | None:
    return next((row for row in state["shadows"] if row["id"] == shadow.instance.id), None)
