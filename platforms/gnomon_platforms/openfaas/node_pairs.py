"""Shadows on a cluster's nodes, for the platform: claims, wishes to the coordinator of the Body's node, and what it tells.

    create ▶ cores of the node are claimed ▶ wish ▶ the node's state: ready, paired ▶ `pair_changed(Body with its Shadow)`
    a Shadow's end, whoever causes it ▶ `pair_changed(Body alone)` ▶ `instance_gone(Shadow)` ▶ the node may forget it

A Body can have a Shadow where the node's coordinator says that the Body of its pod has come. What a coordinator has that we have
not asked for is an earlier leader's, and ended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gnomon_core.blocks import Layers
from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceKind, InstanceState
from gnomon_core.functions import FunctionSpec
from gnomon_core.pairs import MAX_SHADOWS, Pair
from gnomon_core.profiles import ModelProfile
from gnomon_core.seam_values import ModelEntry
from gnomon_platforms.kubernetes.nodes import Given
from gnomon_platforms.local.pairs import predicted_ms, shadow_bytes
from gnomon_platforms.local.profiles import LayerFiles
from gnomon_platforms.openfaas.behind import Behind
from gnomon_platforms.openfaas.node_client import NodeClient, State
from gnomon_platforms.openfaas.node_home import BodyPod, Home, no_capacity, no_such_body

if TYPE_CHECKING:
    import aiohttp


@dataclass(slots=True)
class _Shadow:
    instance: Instance
    pod_uid: str
    since: tuple[str, int] | None = None
    """The first state of its node that knows of it; None until the node has answered."""
    paired: Pair | None = None
    reason: str = ""


class NodePairs:
    """Every Shadow of the cluster that we have asked for. `claimed` is told how many cores a node's Shadows have."""

    def __init__(
        self,
        home: Home,
        session: aiohttp.ClientSession,
        token: str,
        claimed: Callable[[str, int], None] = lambda _node, _cores: None,
    ) -> None:
        self._home = home
        self._claimed = claimed
        self._session = session
        self._token = token
        self._clients: dict[str, NodeClient] = {}
        self._states: dict[str, State] = {}
        """By node, of those that answer."""
        self._shadows: dict[str, _Shadow] = {}
        self._layers = LayerFiles()
        self._behind = Behind()

    @property
    def connected(self) -> bool:
        """Whether some node can make Shadows."""
        return any(state["pool"]["ready"] for state in self._states.values())

    def instances(self, function: str) -> list[Instance]:
        return [one.instance for one in self._shadows.values() if one.instance.function == function]

    def reach(self, node: str, address: str | None) -> None:
        """The coordinator of this node is at this address, or nowhere."""
        known = self._clients.get(node)
        if known is not None and known.address == address:
            return
        if known is not None:
            del self._clients[node]
            self._states.pop(node, None)
            self._behind.begin(known.close())
        if address is not None:
            self._clients[node] = NodeClient(
                self._session, address, self._token, lambda state: self._seen(node, state), lambda: self._lost(node)
            )

    def abandoned(self, node: str) -> None:
        """The node has no coordinator any more, and so no pool: what it had has ended with it."""
        self.reach(node, None)
        for shadow_id in [name for name, one in self._shadows.items() if one.instance.node == node]:
            self._gone(shadow_id, "its node has no coordinator any more")

    async def close(self) -> None:
        """Let go of all nodes. Their Shadows work on for their Bodies until another leader ends them."""
        for client in list(self._clients.values()):
            await client.close()
        await self._behind.done()

    # What is wished for

    async def create(self, body_id: str, pair: Pair, shadow_id: str) -> Instance:
        """Begin a Shadow for a ready Body.

        Raises:
            GnomonError: 409 `no_such_body`, 503 `no_capacity`, 503 `node_unreachable`, or what the node refuses.

        """
        body, client = self._with_coordinator(body_id)
        entry, layers = self._model(body.spec)
        if not pair.blocks or max(pair.blocks) >= len(layers.blocks):
            raise no_such_body(f"Its model has blocks 0 to {len(layers.blocks) - 1}, not {pair.blocks}.")
        profile = self.profile(body.spec)
        memory_bytes = shadow_bytes(layers, pair, profile)
        if self._home.free_cores(body.node) < pair.shadow_cores:
            raise no_capacity(body.node, pair)
        self._home.claims.give(shadow_id, Given(body.node, float(pair.shadow_cores), memory_bytes))
        instance = Instance(
            id=shadow_id,
            function=body.instance.function,
            version=body.instance.version,
            node=body.node,
            cores=pair.shadow_cores,
            memory_bytes=memory_bytes,
            state=InstanceState.STARTING,
            started_s=self._home.now_s(),
            kind=InstanceKind.SHADOW,
            partner=body_id,
            pair=pair,
        )
        shadow = self._shadows[shadow_id] = _Shadow(instance, body.uid)
        about = {"pod_uid": body.uid, "function": body.instance.function, "weight_mode": body.spec.settings.weight_mode}
        max_batch = max(body.spec.settings.max_batch, len(pair.split))
        document = about | self._files(entry) | {"max_batch": max_batch} | self._task(pair, profile)
        try:
            answer = await client.wish("PUT", f"/v1/shadows/{shadow_id}", document)
        except GnomonError:
            self._forget(shadow_id)
            # The wish may have been heard although its answer was not.
            self._behind.begin(self._end_on(client, shadow_id))
            raise
        shadow.since = str(answer["incarnation"]), int(answer["version"])
        return shadow.instance

    async def change(self, shadow_id: str, pair: Pair) -> None:
        """Let a Shadow do something else. Unknown ones are ignored.

        Raises:
            GnomonError: 503 `no_capacity`; it keeps what it has.

        """
        shadow = self._shadows.get(shadow_id)
        body = None if shadow is None else self._home.body(shadow.instance.partner or "")
        client = None if body is None else self._clients.get(body.node)
        if shadow is None or body is None or client is None:
            return
        more = pair.shadow_cores - shadow.instance.cores
        if more > 0 and self._home.free_cores(body.node) < more:
            raise no_capacity(body.node, pair)
        memory_bytes = shadow_bytes(self._model(body.spec)[1], pair, self.profile(body.spec))
        self._home.claims.give(shadow_id, Given(body.node, float(pair.shadow_cores), memory_bytes))
        shadow.instance = replace(shadow.instance, cores=pair.shadow_cores, memory_bytes=memory_bytes)
        await client.wish("PATCH", f"/v1/shadows/{shadow_id}", self._task(pair, self.profile(body.spec)))

    def destroy(self, shadow_id: str) -> bool:
        """End a Shadow; whether there is one of this name. Its end is told of like any other."""
        shadow = self._shadows.get(shadow_id)
        if shadow is None:
            return False
        shadow.instance = replace(shadow.instance, state=InstanceState.DRAINING)
        shadow.reason = shadow.reason or "stopped"
        client = self._clients.get(shadow.instance.node)
        if client is None:
            self._gone(shadow_id, "its node's coordinator is not reached")
        else:
            self._behind.begin(self._end_on(client, shadow_id))
        return True

    def body_gone(self, body_id: str) -> None:
        """Its Shadows go along; the node's coordinator does the same."""
        for shadow_id in [name for name, one in self._shadows.items() if one.instance.partner == body_id]:
            self._shadows[shadow_id].reason = "its Body has gone"
            self.destroy(shadow_id)

    def profile(self, spec: FunctionSpec) -> ModelProfile | None:
        """What was measured of the function's model; None where it has none."""
        try:
            entry, layers = self._model(spec)
        except GnomonError:
            return None
        model = f"{entry.name}@{entry.version}"
        return self._home.profiles.find(model, entry.sha256.get("program.json", ""), layers)

    # What the nodes say

    def _seen(self, node: str, state: State) -> None:
        self._states[node] = state
        self._claimed(node, int(state["pool"]["claimed_cores"]))
        rows = {str(row["id"]): row for row in state["shadows"]}
        for shadow_id, row in rows.items():
            shadow = self._shadows.get(shadow_id)
            if shadow is None:
                # An earlier leader's, or one whose end we have told of.
                self._behind.begin(self._end_on(self._clients[node], shadow_id))
            elif row["state"] == "gone":
                self._gone(shadow_id, str(row["reason"]))
                self._behind.begin(self._end_on(self._clients[node], shadow_id))
            else:
                self._told(shadow, row)
        for shadow_id, shadow in list(self._shadows.items()):
            if shadow_id not in rows and shadow.instance.node == node and _should_know(state, shadow):
                self._gone(shadow_id, "its node's coordinator was started anew")

    def _told(self, shadow: _Shadow, row: Mapping[str, Any]) -> None:
        if row["state"] == "ready" and shadow.instance.state is InstanceState.STARTING:
            shadow.instance = replace(shadow.instance, state=InstanceState.READY)
        pair = Pair(int(row["cores"]), tuple(row["blocks"]), tuple(row["split"])) if row["paired"] else None
        if pair != shadow.paired:
            shadow.paired = pair
            if pair is not None:
                shadow.instance = replace(shadow.instance, pair=pair)
            self._tell_body(shadow)

    def _lost(self, node: str) -> None:
        """It does not answer. Its pairs work on; what has become of them is known when it answers again."""
        self._states.pop(node, None)

    def _gone(self, shadow_id: str, reason: str) -> None:
        shadow = self._forget(shadow_id)
        if shadow is not None:
            if shadow.paired is not None:
                shadow.paired = None
                self._tell_body(shadow)
            self._home.listener.instance_gone(shadow_id, shadow.reason or reason)

    def _forget(self, shadow_id: str) -> _Shadow | None:
        self._home.claims.take_back(shadow_id)
        return self._shadows.pop(shadow_id, None)

    def _tell_body(self, shadow: _Shadow) -> None:
        body_id = shadow.instance.partner or ""
        theirs = {
            name: one.paired
            for name, one in [*self._shadows.items(), (shadow.instance.id, shadow)]
            if one.instance.partner == body_id and one.paired is not None
        }
        self._home.told(body_id, theirs)

    # Details

    def _with_coordinator(self, body_id: str) -> tuple[BodyPod, NodeClient]:
        body = self._home.body(body_id)
        has = sum(one.instance.partner == body_id for one in self._shadows.values())
        if body is None or body.instance.state is not InstanceState.READY or has >= MAX_SHADOWS:
            raise no_such_body(f"It has gone, or has {MAX_SHADOWS} Shadows already.")
        client, state = self._clients.get(body.node), self._states.get(body.node)
        if client is None or state is None:
            raise no_such_body(f"No coordinator is connected on its node {body.node}.")
        if body.uid not in {row["pod_uid"] for row in state["bodies"]}:
            raise no_such_body("Its pod has no volume of driver node.gnomon, or what runs in it is no Body.")
        return body, client

    def _model(self, spec: FunctionSpec) -> tuple[ModelEntry, Layers]:
        """The function's model and its blocks. Raises GnomonError where it has none."""
        if spec.settings.model is None:
            raise no_such_body("It serves no model of the repository.")
        entry = self._home.repository.get(spec.settings.model)
        layers = None if entry.layers is None else self._layers.of({"layers": str(entry.layers)})
        if layers is None:
            raise no_such_body("Its model was captured without layer blocks.")
        return entry, layers

    def _files(self, entry: ModelEntry) -> dict[str, str]:
        paths = {"program": entry.program, "weights": entry.weights, "layers": entry.layers}
        root = self._home.models.resolve()
        return {name: str(path.resolve().relative_to(root)) for name, path in paths.items() if path is not None}

    def _task(self, pair: Pair, profile: ModelProfile | None) -> dict[str, Any]:
        what = {"cores": pair.shadow_cores, "blocks": list(pair.blocks), "split": list(pair.split)}
        return {"epoch": self._home.epoch(), **what, "expected_ms": predicted_ms(profile, pair)}

    async def _end_on(self, client: NodeClient, shadow_id: str) -> None:
        await client.wish("DELETE", f"/v1/shadows/{shadow_id}?epoch={self._home.epoch()}")


def _should_know(state: State, shadow: _Shadow) -> bool:
    """Whether this state is of another process than the one that was asked for the Shadow, or no older than its answer."""
    if shadow.since is None:
        return False
    incarnation, version = shadow.since
    return bool(state["incarnation"] != incarnation or state["version"] >= version)
