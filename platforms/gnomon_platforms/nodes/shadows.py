"""The tracker of all Shadows on a cluster's nodes: claims cores, sends requests to coordinators, reports changes to the platform.

    create ▶ claim cores of the node ▶ request ▶ the node's state: ready, paired ▶ `pair_changed(Body with its Shadow)`
    a Shadow's end, whatever its cause ▶ `pair_changed(Body alone)` ▶ `instance_gone(Shadow)` ▶ the node may forget the Shadow

    a Shadow of an earlier leader ▶ its Body is known ▶ `shadow_found` ▶ tracked as if it had been requested here

A Shadow is on another node than its Body where the pair names one; `remote_pairs` orders the requests to the two nodes.

A Body can have a Shadow once its node's coordinator reports that the Body of its pod has connected. A Shadow that was
not requested here belongs to an earlier leader: it is adopted with its Body, which may be found a moment later. Once `adopting_s`
is over, Shadows without a Body are ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from gnomon_core.background import Background
from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.pairs import MAX_SHADOWS, Pair
from gnomon_platforms.kubernetes.nodes import Claim
from gnomon_platforms.nodes.client import CoordinatorConnections, NodeClient
from gnomon_platforms.nodes.node_shadow import (
    ALIVE,
    BodyPod,
    NodeShadow,
    Row,
    ShadowContext,
    ShadowRequests,
    State,
    adopted_shadow,
    no_capacity,
    no_such_body,
    pair_of,
    requested_shadow,
    should_contain,
    version_of,
)
from gnomon_platforms.nodes.remote_pairs import RemotePairs

if TYPE_CHECKING:
    import aiohttp


class ShadowTracker:
    """All Shadows of this platform on the cluster's nodes. `cores_changed` is called with a node and its Shadows' cores."""

    def __init__(
        self,
        context: ShadowContext,
        session: aiohttp.ClientSession,
        token: str,
        cores_changed: Callable[[str, int], None] = lambda _node, _cores: None,
    ) -> None:
        self._context = context
        self._cores_changed = cores_changed
        self.connections = CoordinatorConnections(session, token, context.epoch, self._state_changed, self._lost)
        self._shadows: dict[str, NodeShadow] = {}
        self._reported_gone: dict[str, str] = {}
        """Shadows whose end has been reported, and their nodes, until the node forgets them: their rows are not adopted."""
        self._recheck: asyncio.TimerHandle | None = None
        self._background = Background()
        self._requests = ShadowRequests(context)
        self._remote = RemotePairs(self.connections, self._background, self._requests, self._set_pair)

    def instances(self, function: str) -> list[Instance]:
        return [shadow.instance for shadow in self._shadows.values() if shadow.instance.function == function]

    def coordinator_removed(self, node: str) -> None:
        """Report the end of a node's Shadows: its coordinator was removed, and their processes ended with it."""
        self.connections.set_address(node, None)
        for shadow in [shadow for shadow in self._shadows.values() if shadow.body_node == node]:
            self._remote.end_own_half(shadow, "its Body's node has no coordinator any more")
        for shadow_id in [name for name, shadow in self._shadows.items() if shadow.instance.node == node]:
            self._gone(shadow_id, "its node has no coordinator any more")

    async def close(self) -> None:
        """Disconnect from all nodes. The Shadows keep working for their Bodies, and the next leader adopts them."""
        if self._recheck is not None:
            self._recheck.cancel()
        await self.connections.close()
        await self._background.settled()
        for shadow_id in list(self._shadows):
            self._gone(shadow_id, "the gateway stops; it works on for its Body")

    # Requests of the platform

    async def create(self, body_id: str, pair: Pair, shadow_id: str) -> Instance:
        """Start a Shadow for a Body that is ready.

        Raises:
            GnomonError: 404 `no_such_node` for one that makes no Shadows, 409 `no_such_body`, 503 `no_capacity`, 503
                `node_unreachable`, or what the node refuses.

        """
        body, _ = self._with_coordinator(body_id)
        model, files = await self._requests.model(body.spec), await self._requests.files(body.spec)
        # The Body may have ended while the files were read.
        body, client = self._with_coordinator(body_id)
        node = self._context.node_of(body, pair)
        pair = replace(pair, node=None if node == body.node else node)
        client = client if pair.node is None else self.connections.of_remote_node(node, body.node)
        if not pair.blocks or max(pair.blocks) >= len(model.layers.blocks):
            raise no_such_body(f"Its model has blocks 0 to {len(model.layers.blocks) - 1}, not {pair.blocks}.")
        memory_bytes = model.memory_bytes(pair)
        if self._context.capacity.free_cores(node) < pair.shadow_cores:
            raise no_capacity(node, pair)
        self._context.capacity.claim(shadow_id, Claim(node, float(pair.shadow_cores), memory_bytes))
        shadow = self._shadows[shadow_id] = requested_shadow(shadow_id, body, pair, memory_bytes, self._context.now_s())
        try:
            document = self._requests.creation(shadow, model, files) | {"afar": pair.node is not None}
            shadow.known_since = version_of(await client.request("PUT", f"/v1/shadows/{shadow_id}", document))
        except BaseException:
            self._forget(shadow_id)
            # The node may have created the Shadow although its answer was lost.
            self._end(client, shadow_id)
            raise
        return shadow.instance

    async def change(self, shadow_id: str, pair: Pair) -> None:
        """Change the cores, blocks or split of a Shadow; unknown Shadows are ignored.

        Raises:
            GnomonError: 503 `no_capacity`, `node_unreachable`, 409 `no_such_blocks` for a remote one. The Shadow then stays.

        """
        shadow = self._shadows.get(shadow_id)
        body = None if shadow is None else self._context.bodies.of_instance(shadow.instance.partner or "")
        if shadow is None or body is None:
            return
        model = await self._requests.model(body.spec)
        if self._shadows.get(shadow_id) is not shadow:
            return
        client = self.connections.of_node(body.node, shadow_id)
        node = shadow.instance.node
        pair = replace(pair, node=None if shadow.body_node is None else node)
        more = pair.shadow_cores - shadow.instance.cores
        if more > 0 and self._context.capacity.free_cores(node) < more:
            raise no_capacity(node, pair)
        memory_bytes, before = model.memory_bytes(shadow.loaded(pair)), shadow.instance
        self._set_resources(shadow, pair.shadow_cores, memory_bytes)
        shadow.unconfirmed = False
        try:
            if shadow.body_node is not None:
                await self._remote.change(shadow, model, pair)
            else:
                await client.request("PATCH", f"/v1/shadows/{shadow_id}", self._requests.change(model, pair, memory_bytes))
        except BaseException:
            # The node may have changed the Shadow although its answer was lost: its present or next state decides.
            shadow.unconfirmed = True
            self._set_resources(shadow, before.cores, before.memory_bytes)
            self.reconcile(node)
            raise

    def destroy(self, shadow_id: str) -> bool:
        """End a Shadow, and return whether there is one of this name. Its end is reported like any other."""
        shadow = self._shadows.get(shadow_id)
        if shadow is None:
            return False
        shadow.instance = replace(shadow.instance, state=InstanceState.DRAINING)
        shadow.end_reason = shadow.end_reason or "stopped"
        client = self.connections.clients.get(shadow.instance.node)
        if shadow.body_node is not None and self._remote.end_body_half(shadow):
            # The Shadow ends after the Body's node has reported that the Body works without it.
            return True
        if client is None:
            self._gone(shadow_id, "its node's coordinator is not reached")
        else:
            self._end(client, shadow_id)
        return True

    def body_gone(self, body_id: str) -> None:
        """End the Shadows of a Body that has ended; its node's coordinator ends them by itself, too."""
        for shadow_id in [name for name, shadow in self._shadows.items() if shadow.instance.partner == body_id]:
            self._shadows[shadow_id].end_reason = "its Body has gone"
            self.destroy(shadow_id)

    # States of the nodes

    def _state_changed(self, node: str) -> None:
        pool = self.connections.states[node]["pool"]
        self._context.capacity.pool_ready(node, ready=bool(pool["ready"]) and self._context.models.on_nodes)
        self._cores_changed(node, int(pool["claimed_cores"]))
        self.reconcile(node)

    def _lost(self, node: str) -> None:
        self._context.capacity.pool_ready(node, ready=False)
        for shadow in [shadow for shadow in self._shadows.values() if shadow.body_node == node]:
            if shadow.instance.state is InstanceState.DRAINING:
                # The Body's node, which would report that the Body works without this Shadow, is not reachable.
                self._remote.end_own_half(shadow, "stopped")

    def reconcile(self, node: str) -> None:
        """Compare the tracked Shadows with the last state of a node: after a new state, or once another Body is known."""
        state = self.connections.states.get(node)
        if state is None:
            return
        rows: dict[str, Row] = {str(row["id"]): row for row in state["shadows"]}
        for shadow_id, row in rows.items():
            if row.get("elsewhere"):
                if shadow_id not in self._shadows and self._adopt_remote(shadow_id) is None:
                    self._end_orphan(node, row)
                continue
            shadow = self._shadows.get(shadow_id) or self._adopt(state, row)
            if shadow is None:
                self._end_orphan(node, row)
            elif row["state"] == "gone":
                self._gone(shadow_id, str(row["reason"]))
                self._end(self.connections.clients[node], shadow_id)
            else:
                self._update(shadow, row)
        for shadow_id, shadow in list(self._shadows.items()):
            if shadow_id not in rows and shadow.instance.node == node and should_contain(state, shadow.known_since):
                self._gone(shadow_id, "its node's coordinator was started anew")
            elif shadow.body_node is not None and node in (shadow.body_node, shadow.instance.node):
                self._remote.reconcile(shadow)
        self._reported_gone = {name: where for name, where in self._reported_gone.items() if where != node or name in rows}

    def _adopt(self, state: State, row: Row) -> NodeShadow | None:
        """Track a Shadow of an earlier leader; None where its Body is not known, or where the Shadow is ending."""
        shadow_id, body = str(row["id"]), self._context.bodies.of_pod(str(row["pod_uid"]))
        if body is None or shadow_id in self._reported_gone or row["state"] not in ALIVE:
            return None
        shadow = self._shadows[shadow_id] = adopted_shadow(row, body, state, self._context.now_s())
        instance = shadow.instance
        self._context.capacity.claim(shadow_id, Claim(instance.node, float(instance.cores), instance.memory_bytes))
        self._context.listener.shadow_found(instance)
        return shadow

    def _adopt_remote(self, shadow_id: str) -> NodeShadow | None:
        """Track a remote Shadow of an earlier leader that its Body's node reports; the row of its own node describes it."""
        for state in self.connections.states.values():
            for row in state["shadows"]:
                if row["id"] == shadow_id and row.get("afar"):
                    return self._adopt(state, row)
        return None

    def _end_orphan(self, node: str, row: Row) -> None:
        """End a Shadow without a Body once no more Bodies can be found, or let the node forget one that has ended."""
        shadow_id, left_s = str(row["id"]), self._context.adopting_s()
        if left_s > 0 and shadow_id not in self._reported_gone and row["state"] in ALIVE:
            if self._recheck is None:
                self._recheck = asyncio.get_running_loop().call_later(left_s, self._reconcile_all)
        elif row["state"] != "ending":
            self._end(self.connections.clients[node], shadow_id)

    def _reconcile_all(self) -> None:
        self._recheck = None
        for node in list(self.connections.states):
            self.reconcile(node)

    def _update(self, shadow: NodeShadow, row: Row) -> None:
        """Apply the row that a node reports of a tracked Shadow."""
        if row["state"] == "ready" and shadow.instance.state is InstanceState.STARTING:
            shadow.instance = replace(shadow.instance, state=InstanceState.READY)
        if shadow.unconfirmed:
            self._set_resources(shadow, int(row["cores"]), int(row.get("memory_bytes", shadow.instance.memory_bytes)))
        if shadow.body_node is None:
            self._set_pair(shadow, pair_of(row))
            if shadow.instance.state is InstanceState.DRAINING and row["state"] in ALIVE:
                # The request that ended the Shadow was lost.
                self._end(self.connections.clients[shadow.instance.node], shadow.instance.id)

    def _set_pair(self, shadow: NodeShadow, pair: Pair | None) -> None:
        """Store and report what a Shadow computes for its Body."""
        if pair != shadow.pair:
            shadow.pair = pair
            if pair is not None:
                shadow.instance = replace(shadow.instance, pair=pair)
            self._report_pairs(shadow)

    def _set_resources(self, shadow: NodeShadow, cores: int, memory_bytes: int) -> None:
        """Store and claim what a Shadow has of its node."""
        shadow.instance = replace(shadow.instance, cores=cores, memory_bytes=memory_bytes)
        if shadow.instance.id in self._shadows:
            self._context.capacity.claim(shadow.instance.id, Claim(shadow.instance.node, float(cores), memory_bytes))

    def _gone(self, shadow_id: str, reason: str) -> None:
        """Stop tracking a Shadow that has ended, and report why."""
        shadow = self._forget(shadow_id)
        if shadow is not None:
            self._remote.gone(shadow)
            self._context.listener.instance_gone(shadow_id, shadow.end_reason or reason)

    def _forget(self, shadow_id: str) -> NodeShadow | None:
        """Stop tracking a Shadow, release its claim, and report that its Body works without it."""
        self._context.capacity.withdraw(shadow_id)
        shadow = self._shadows.pop(shadow_id, None)
        if shadow is not None:
            self._reported_gone[shadow_id] = shadow.instance.node
            if shadow.pair is not None:
                shadow.pair = None
                self._report_pairs(shadow)
        return shadow

    def _end(self, client: NodeClient, shadow_id: str) -> None:
        self._background.begin(self.connections.end_shadow(client, shadow_id))

    def _report_pairs(self, shadow: NodeShadow) -> None:
        body_id = shadow.instance.partner or ""
        theirs = {
            name: shadow.pair
            for name, shadow in [*self._shadows.items(), (shadow.instance.id, shadow)]
            if shadow.instance.partner == body_id and shadow.pair is not None
        }
        self._context.bodies.set_pairs(body_id, theirs)

    def _with_coordinator(self, body_id: str) -> tuple[BodyPod, NodeClient]:
        body = self._context.bodies.of_instance(body_id)
        has = sum(shadow.instance.partner == body_id for shadow in self._shadows.values())
        if body is None or body.instance.state is not InstanceState.READY or has >= MAX_SHADOWS:
            raise no_such_body(f"The Body has ended, or has {MAX_SHADOWS} Shadows already.")
        return body, self.connections.of_body(body)
