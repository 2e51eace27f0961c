"""Pairs on two nodes: which of the two nodes' coordinators is told what, and when.

    create ▶ the Shadow's node makes it ─ ready, with a token ▶ the Body's node tells its Body the way ─ paired …
    destroy ▶ the Body's node: without it ─ over ▶ the Shadow's node ends it ─ gone
    whichever half ends by itself ▶ the other one is ended

Each step follows from what both nodes have said last, so that a leader that has found a Shadow takes the same ones. A Body's node
that does not answer holds nothing up but the beginning: a Shadow to which nobody comes ends by itself, as one that is left does.
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
from gnomon_platforms.nodes.client import NodeClient, State
from gnomon_platforms.nodes.reached import ReachedNodes
from gnomon_platforms.nodes.shadows import LIVING, NodeShadow, Row, paired, should_know, version_of
from gnomon_platforms.nodes.wishes import FunctionModel, Wishes


class FarPairs:
    """Takes each Shadow that is not on its Body's node through its steps.

    `works` is told what it does for its Body.
    """

    def __init__(
        self,
        nodes: ReachedNodes,
        behind: Background,
        wishes: Wishes,
        works: Callable[[NodeShadow, Pair | None], None],
    ) -> None:
        self._nodes, self._behind = nodes, behind
        self._wishes, self._works = wishes, works

    def look(self, shadow: NodeShadow) -> None:
        """Take the next step, if what the nodes have said last allows one."""
        home = self._nodes.states.get(shadow.home or "")
        client = self._nodes.clients.get(shadow.home or "")
        if home is None or client is None:
            return
        row = _row(home, shadow)
        if row is None and should_know(home, shadow.met):
            self.part(shadow, "the coordinator of its Body's node was started anew")
        elif row is None:
            self._introduce(shadow, client)
        elif row["state"] == "gone":
            self._behind.begin(self._nodes.end(client, shadow.instance.id))
            self.part(shadow, str(row["reason"]))
        else:
            # An earlier leader may have brought them together.
            shadow.asked, shadow.met = True, shadow.met or version_of(home)
            self._works(shadow, paired(row, shadow.instance.node))
            if shadow.instance.state is InstanceState.DRAINING and row["state"] in LIVING:
                # What its Body's node was told may have been lost.
                self._behind.begin(self._nodes.end(client, shadow.instance.id))

    def _introduce(self, shadow: NodeShadow, home: NodeClient) -> None:
        """Have its Body told the way to a Shadow that is ready, once."""
        there = self._nodes.states.get(shadow.instance.node)
        node = self._nodes.clients.get(shadow.instance.node)
        row = None if there is None else _row(there, shadow)
        if row is None or there is None or node is None:
            return
        if shadow.instance.state is InstanceState.DRAINING:
            if row["state"] in LIVING:
                # What its own node was told may have been lost.
                self._behind.begin(self._nodes.end(node, shadow.instance.id))
            return
        if row["state"] != "ready" or shadow.asked:
            return
        shadow.asked = True
        # On this node it takes nothing.
        way = {"url": url_of(node.address, there), "token": row["token"], "memory_bytes": 0}
        self._behind.begin(self._meet(shadow, home, way))

    async def _meet(self, shadow: NodeShadow, home: NodeClient, way: dict[str, Any]) -> None:
        try:
            answer = await home.wish("PUT", f"/v1/shadows/{shadow.instance.id}", await self._wishes.again(shadow) | way)
        except Exception as error:
            self.part(shadow, str(error))
            raise
        shadow.met = version_of(answer)

    async def change(self, shadow: NodeShadow, model: FunctionModel, pair: Pair) -> None:
        """Let it do something else: its own node sees to its cores, its Body's to its share of each batch.

        Raises:
            GnomonError: what one of the two refuses; 503 `node_unreachable` where one is not there to be told: then none is.

        """
        path = f"/v1/shadows/{shadow.instance.id}"
        node = self._nodes.telling(shadow.instance.id, shadow.instance.node)
        home = self._nodes.telling(shadow.instance.id, shadow.home or "")
        held = self._wishes.task(model, shadow.holding(pair), shadow.instance.memory_bytes)
        await node.wish("PATCH", path, held)
        if not shadow.asked:
            # What its Body will be told of.
            shadow.instance = replace(shadow.instance, pair=pair)
        await home.wish("PATCH", path, self._wishes.task(model, pair, 0))

    def leave(self, shadow: NodeShadow) -> bool:
        """Have its Body go on without it, after which it ends; False where its Body's node has nothing to end."""
        home = self._nodes.states.get(shadow.home or "")
        client = self._nodes.clients.get(shadow.home or "")
        row = None if home is None else _row(home, shadow)
        if client is None or row is None or row["state"] not in LIVING:
            return False
        self._behind.begin(self._nodes.end(client, shadow.instance.id))
        return True

    def part(self, shadow: NodeShadow, reason: str) -> None:
        """Its Body works without it, or is not reached: it ends where it is."""
        if shadow.parted:
            return
        client = self._nodes.clients.get(shadow.instance.node)
        shadow.parted, shadow.reason = client is not None, shadow.reason or reason
        shadow.instance = replace(shadow.instance, state=InstanceState.DRAINING)
        self._works(shadow, None)
        if client is not None:
            self._behind.begin(self._nodes.end(client, shadow.instance.id))

    def over(self, shadow: NodeShadow) -> None:
        """It has gone: the other half goes as well."""
        client = self._nodes.clients.get(shadow.home or "")
        if client is not None and shadow.asked:
            self._behind.begin(self._nodes.end(client, shadow.instance.id))


def url_of(address: str, state: State) -> str:
    """Where Bodies of other nodes come to Shadows of the node whose coordinator is at this address."""
    return http_url(urlsplit(address).hostname or "", state["pair_port"])


def _row(state: State, shadow: NodeShadow) -> Row | None:
    return next((row for row in state["shadows"] if row["id"] == shadow.instance.id), None)
