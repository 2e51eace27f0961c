"""Shadows on a cluster's nodes, for the platform: claims, wishes to the coordinator of the Body's node, and what it tells.

    create ▶ cores of the node are claimed ▶ wish ▶ the node's state: ready, paired ▶ `pair_changed(Body with its Shadow)`
    a Shadow's end, whoever causes it ▶ `pair_changed(Body alone)` ▶ `instance_gone(Shadow)` ▶ the node may forget it

    a Shadow that an earlier leader has left ▶ its Body is known ▶ `shadow_found` ▶ as if it had been asked for here

A Shadow may be on another node than its Body, where the pair names one (`far_pairs`): then there is something to tell both nodes.

A Body can have a Shadow where the node's coordinator says that the Body of its pod has come. What a coordinator has that we have
not asked for is an earlier leader's: it goes on where its Body does. That one may be found a moment later; when the time for that
is over, what is nobody's is ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from gnomon_core.background import Background
from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.pairs import MAX_SHADOWS, Pair
from gnomon_platforms.kubernetes.nodes import Given
from gnomon_platforms.nodes.client import NodeClient, State
from gnomon_platforms.nodes.far_pairs import FarPairs
from gnomon_platforms.nodes.home import BodyPod, Home, no_capacity, no_such_body
from gnomon_platforms.nodes.reached import ReachedNodes
from gnomon_platforms.nodes.shadows import LIVING, NodeShadow, Row, asked_for, found, paired, should_know, version_of
from gnomon_platforms.nodes.wishes import Wishes

if TYPE_CHECKING:
    import aiohttp


class NodePairs:
    """Every Shadow of the cluster that is ours. `claimed` is told how many cores a node's Shadows have."""

    def __init__(
        self,
        home: Home,
        session: aiohttp.ClientSession,
        token: str,
        claimed: Callable[[str, int], None] = lambda _node, _cores: None,
    ) -> None:
        self._home = home
        self._claimed = claimed
        self.nodes = ReachedNodes(session, token, home.epoch, self._seen, self._lost)
        self._shadows: dict[str, NodeShadow] = {}
        self._over: dict[str, str] = {}
        """Shadows whose end we have told of, and where they are, as long as their node has them."""
        self._again: asyncio.TimerHandle | None = None
        self._behind = Background()
        self._wishes = Wishes(home)
        self._far = FarPairs(self.nodes, self._behind, self._wishes, self._works)

    def instances(self, function: str) -> list[Instance]:
        return [one.instance for one in self._shadows.values() if one.instance.function == function]

    def abandoned(self, node: str) -> None:
        """The node has no coordinator any more, and so no pool: what it had has ended with it."""
        self.nodes.reach(node, None)
        for shadow in [one for one in self._shadows.values() if one.home == node]:
            self._far.part(shadow, "its Body's node has no coordinator any more")
        for shadow_id in [name for name, one in self._shadows.items() if one.instance.node == node]:
            self._gone(shadow_id, "its node has no coordinator any more")

    async def close(self) -> None:
        """Let go of all nodes, and of their Shadows: those work on for their Bodies, and the next leader finds them."""
        if self._again is not None:
            self._again.cancel()
        await self.nodes.close()
        await self._behind.settled()
        for shadow_id in list(self._shadows):
            self._gone(shadow_id, "the gateway stops; it works on for its Body")

    # What is wished for

    async def create(self, body_id: str, pair: Pair, shadow_id: str) -> Instance:
        """Begin a Shadow for a ready Body.

        Raises:
            GnomonError: 404 `no_such_node` for one that makes no Shadows, 409 `no_such_body`, 503 `no_capacity`, 503
                `node_unreachable`, or what the node refuses.

        """
        body, _ = self._with_coordinator(body_id)
        model, files = await self._wishes.model(body.spec), await self._wishes.files(body.spec)
        # Its Body may have gone while that was read.
        body, client = self._with_coordinator(body_id)
        node = self._home.node_of(body, pair)
        pair = replace(pair, node=None if node == body.node else node)
        client = client if pair.node is None else self.nodes.making(node, body.node)
        if not pair.blocks or max(pair.blocks) >= len(model.layers.blocks):
            raise no_such_body(f"Its model has blocks 0 to {len(model.layers.blocks) - 1}, not {pair.blocks}.")
        memory_bytes = model.memory_bytes(pair)
        if self._home.claims.free_cores(node) < pair.shadow_cores:
            raise no_capacity(node, pair)
        self._home.claims.give(shadow_id, Given(node, float(pair.shadow_cores), memory_bytes))
        shadow = self._shadows[shadow_id] = asked_for(shadow_id, body, pair, memory_bytes, self._home.now_s())
        try:
            document = self._wishes.whole(shadow, model, files) | {"afar": pair.node is not None}
            shadow.since = version_of(await client.wish("PUT", f"/v1/shadows/{shadow_id}", document))
        except BaseException:
            self._forget(shadow_id)
            # The wish may have been heard although its answer was not.
            self._behind.begin(self.nodes.end(client, shadow_id))
            raise
        return shadow.instance

    async def change(self, shadow_id: str, pair: Pair) -> None:
        """Let a Shadow do something else. Unknown ones are ignored.

        Raises:
            GnomonError: 503 `no_capacity`, `node_unreachable`, 409 `no_such_blocks` for one elsewhere; it keeps what it has.

        """
        shadow = self._shadows.get(shadow_id)
        body = None if shadow is None else self._home.bodies.of_instance(shadow.instance.partner or "")
        if shadow is None or body is None:
            return
        model = await self._wishes.model(body.spec)
        if self._shadows.get(shadow_id) is not shadow:
            return
        client = self.nodes.telling(shadow_id, body.node)
        node = shadow.instance.node
        pair = replace(pair, node=None if shadow.home is None else node)
        more = pair.shadow_cores - shadow.instance.cores
        if more > 0 and self._home.claims.free_cores(node) < more:
            raise no_capacity(node, pair)
        memory_bytes, before = model.memory_bytes(shadow.holding(pair)), shadow.instance
        self._takes(shadow, pair.shadow_cores, memory_bytes)
        shadow.unheard = False
        try:
            if shadow.home is not None:
                await self._far.change(shadow, model, pair)
            else:
                await client.wish("PATCH", f"/v1/shadows/{shadow_id}", self._wishes.task(model, pair, memory_bytes))
        except BaseException:
            # It may have been heard although its answer was not: then the node's state says so, or its next one.
            shadow.unheard = True
            self._takes(shadow, before.cores, before.memory_bytes)
            self.look(node)
            raise

    def destroy(self, shadow_id: str) -> bool:
        """End a Shadow; whether there is one of this name. Its end is told of like any other."""
        shadow = self._shadows.get(shadow_id)
        if shadow is None:
            return False
        shadow.instance = replace(shadow.instance, state=InstanceState.DRAINING)
        shadow.reason = shadow.reason or "stopped"
        client = self.nodes.clients.get(shadow.instance.node)
        if shadow.home is not None and self._far.leave(shadow):
            # It ends when its Body has let go of it.
            return True
        if client is None:
            self._gone(shadow_id, "its node's coordinator is not reached")
        else:
            self._behind.begin(self.nodes.end(client, shadow_id))
        return True

    def body_gone(self, body_id: str) -> None:
        """Its Shadows go along; the node's coordinator does the same."""
        for shadow_id in [name for name, one in self._shadows.items() if one.instance.partner == body_id]:
            self._shadows[shadow_id].reason = "its Body has gone"
            self.destroy(shadow_id)

    # What the nodes say

    def _seen(self, node: str) -> None:
        pool = self.nodes.states[node]["pool"]
        self._home.claims.pool_ready(node, ready=bool(pool["ready"]) and self._home.models.on_nodes)
        self._claimed(node, int(pool["claimed_cores"]))
        self.look(node)

    def _lost(self, node: str) -> None:
        self._home.claims.pool_ready(node, ready=False)
        for shadow in [one for one in self._shadows.values() if one.home == node]:
            if shadow.instance.state is InstanceState.DRAINING:
                # Nobody says when its Body has let go of it.
                self._far.part(shadow, "stopped")

    def look(self, node: str) -> None:
        """See what the node has said last, by what is known now, such as by a Body that was found since."""
        state = self.nodes.states.get(node)
        if state is None:
            return
        rows: dict[str, Row] = {str(row["id"]): row for row in state["shadows"]}
        for shadow_id, row in rows.items():
            if row.get("elsewhere"):
                if shadow_id not in self._shadows and self._find_elsewhere(shadow_id) is None:
                    self._let_go(node, row)
                continue
            shadow = self._shadows.get(shadow_id) or self._find(state, row)
            if shadow is None:
                self._let_go(node, row)
            elif row["state"] == "gone":
                self._gone(shadow_id, str(row["reason"]))
                self._behind.begin(self.nodes.end(self.nodes.clients[node], shadow_id))
            else:
                self._told(shadow, row)
        for shadow_id, shadow in list(self._shadows.items()):
            if shadow_id not in rows and shadow.instance.node == node and should_know(state, shadow.since):
                self._gone(shadow_id, "its node's coordinator was started anew")
            elif shadow.home is not None and node in (shadow.home, shadow.instance.node):
                self._far.look(shadow)
        self._over = {name: where for name, where in self._over.items() if where != node or name in rows}

    def _find(self, state: State, row: Row) -> NodeShadow | None:
        """Go on with a Shadow that an earlier leader has left; None where its Body is not known, or it is about to end."""
        shadow_id, body = str(row["id"]), self._home.bodies.of_pod(str(row["pod_uid"]))
        if body is None or shadow_id in self._over or row["state"] not in LIVING:
            return None
        shadow = self._shadows[shadow_id] = found(row, body, state, self._home.now_s())
        instance = shadow.instance
        self._home.claims.give(shadow_id, Given(instance.node, float(instance.cores), instance.memory_bytes))
        self._home.listener.shadow_found(instance)
        return shadow

    def _find_elsewhere(self, shadow_id: str) -> NodeShadow | None:
        """The same for one of which its Body's node tells: another node has it."""
        for state in self.nodes.states.values():
            for row in state["shadows"]:
                if row["id"] == shadow_id and row.get("afar"):
                    return self._find(state, row)
        return None

    def _let_go(self, node: str, row: Row) -> None:
        """End a Shadow that is nobody's, once it is known that nobody's it stays; or forget one that has gone."""
        shadow_id, left_s = str(row["id"]), self._home.adopting_s()
        if left_s > 0 and shadow_id not in self._over and row["state"] in LIVING:
            if self._again is None:
                self._again = asyncio.get_running_loop().call_later(left_s, self._look_again)
        elif row["state"] != "ending":
            self._behind.begin(self.nodes.end(self.nodes.clients[node], shadow_id))

    def _look_again(self) -> None:
        self._again = None
        for node in list(self.nodes.states):
            self.look(node)

    def _told(self, shadow: NodeShadow, row: Row) -> None:
        if row["state"] == "ready" and shadow.instance.state is InstanceState.STARTING:
            shadow.instance = replace(shadow.instance, state=InstanceState.READY)
        if shadow.unheard:
            self._takes(shadow, int(row["cores"]), int(row.get("memory_bytes", shadow.instance.memory_bytes)))
        if shadow.home is None:
            self._works(shadow, paired(row))
            if shadow.instance.state is InstanceState.DRAINING and row["state"] in LIVING:
                # What its node was told may have been lost.
                self._behind.begin(self.nodes.end(self.nodes.clients[shadow.instance.node], shadow.instance.id))

    def _works(self, shadow: NodeShadow, pair: Pair | None) -> None:
        """It does this for its Body now."""
        if pair != shadow.paired:
            shadow.paired = pair
            if pair is not None:
                shadow.instance = replace(shadow.instance, pair=pair)
            self._tell_body(shadow)

    def _takes(self, shadow: NodeShadow, cores: int, memory_bytes: int) -> None:
        """It has, or is to have, so much of its node."""
        shadow.instance = replace(shadow.instance, cores=cores, memory_bytes=memory_bytes)
        if shadow.instance.id in self._shadows:
            self._home.claims.give(shadow.instance.id, Given(shadow.instance.node, float(cores), memory_bytes))

    def _gone(self, shadow_id: str, reason: str) -> None:
        shadow = self._forget(shadow_id)
        if shadow is not None:
            self._far.over(shadow)
            self._home.listener.instance_gone(shadow_id, shadow.reason or reason)

    def _forget(self, shadow_id: str) -> NodeShadow | None:
        """It is ours no more, and its Body is told so."""
        self._home.claims.take_back(shadow_id)
        shadow = self._shadows.pop(shadow_id, None)
        if shadow is not None:
            self._over[shadow_id] = shadow.instance.node
            if shadow.paired is not None:
                shadow.paired = None
                self._tell_body(shadow)
        return shadow

    def _tell_body(self, shadow: NodeShadow) -> None:
        body_id = shadow.instance.partner or ""
        theirs = {
            name: one.paired
            for name, one in [*self._shadows.items(), (shadow.instance.id, shadow)]
            if one.instance.partner == body_id and one.paired is not None
        }
        self._home.bodies.works_with(body_id, theirs)

    def _with_coordinator(self, body_id: str) -> tuple[BodyPod, NodeClient]:
        body = self._home.bodies.of_instance(body_id)
        has = sum(one.instance.partner == body_id for one in self._shadows.values())
        if body is None or body.instance.state is not InstanceState.READY or has >= MAX_SHADOWS:
            raise no_such_body(f"It has gone, or has {MAX_SHADOWS} Shadows already.")
        return body, self.nodes.of_body(body)
