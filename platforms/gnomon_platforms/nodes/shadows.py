"""One Shadow on a node, as the platform keeps it: one that was asked for, or one that an earlier leader has left there.

    asked for ─▶ STARTING, since the node's answer          found in a node's state ─▶ what the node says of it, since that state

A node tells of a Shadow by a row: what was wished for, and what it does for its Body by now.

One on another node than its Body has two rows: its own node's, `afar`, of the process, and the Body's, `elsewhere`, of the pair.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gnomon_core.fleet import Instance, InstanceKind, InstanceState
from gnomon_core.pairs import Pair
from gnomon_platforms.nodes.client import State
from gnomon_platforms.nodes.home import BodyPod, no_such_blocks

Row = Mapping[str, Any]
Version = tuple[str, int]
"""Of a node's state: whose, and its number."""
LIVING = ("starting", "ready")


@dataclass(slots=True)
class NodeShadow:
    """A Shadow. `paired` is what it does for its Body, `reason` why it is ended.

    `home` is its Body's node where it is on another one, `holds` are the blocks that it was made with.
    """

    instance: Instance
    since: Version | None = None
    """The first state of its node that knows of it; None until the node has answered."""
    paired: Pair | None = None
    reason: str = ""
    home: str | None = None
    holds: tuple[int, ...] = ()
    asked: bool = False
    """Whether its Body's node has been asked to bring both together."""
    met: Version | None = None
    """The first state of its Body's node that knows of it."""
    parted: bool = False
    """Whether its own node has been asked to end it, its Body being without it."""
    unheard: bool = False
    """Whether the last change may not have been heard: what it takes of its node, that node says."""

    def holding(self, pair: Pair) -> Pair:
        """What it has to hold for that. On another node than its Body's that is what it was made with, whatever is used of it.

        Raises:
            GnomonError: 409 `no_such_blocks`: it was made with others.

        """
        if self.home is None:
            return pair
        if not set(pair.blocks) <= set(self.holds):
            raise no_such_blocks(self.instance.id, self.holds)
        return replace(pair, blocks=self.holds)


def asked_for(shadow_id: str, body: BodyPod, pair: Pair, memory_bytes: int, now_s: float) -> NodeShadow:
    """One that is to be made for this Body."""
    instance = Instance(
        id=shadow_id,
        function=body.instance.function,
        version=body.instance.version,
        node=pair.node or body.node,
        cores=pair.shadow_cores,
        memory_bytes=memory_bytes,
        state=InstanceState.STARTING,
        started_s=now_s,
        kind=InstanceKind.SHADOW,
        partner=body.instance.id,
        pair=pair,
    )
    return NodeShadow(instance, home=None if pair.node is None else body.node, holds=pair.blocks)


def found(row: Row, body: BodyPod, state: State, now_s: float) -> NodeShadow:
    """One that is there for this Body, as if it had been asked for now."""
    # A coordinator of an earlier version says only what it does.
    wished = row.get("wished", row)
    node = str(state["node"]) if row.get("afar") else None
    pair = Pair(int(row["cores"]), tuple(wished["blocks"]), tuple(wished["split"]), node)
    memory_bytes = int(row.get("memory_bytes") or row.get("resident_bytes", 0))
    shadow = asked_for(str(row["id"]), body, pair, memory_bytes, now_s)
    shadow.since = version_of(state)
    return shadow


def paired(row: Row, node: str | None = None) -> Pair | None:
    """What a Shadow, which may be on another node, does for its Body; None while that works without it."""
    return Pair(int(row["cores"]), tuple(row["blocks"]), tuple(row["split"]), node) if row["paired"] else None


def version_of(state: State) -> Version:
    """Which state of its node this is."""
    return str(state["incarnation"]), int(state["version"])


def should_know(state: State, since: Version | None) -> bool:
    """Whether this state is of another process than the one that was asked for a Shadow, or no older than its answer."""
    if since is None:
        return False
    incarnation, version = since
    return bool(state["incarnation"] != incarnation or state["version"] >= version)
