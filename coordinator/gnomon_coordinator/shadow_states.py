"""The states of a Shadow, the transitions between them, and the record of one Shadow.

    created:              AWAITING_CONTAINER ▶ QUEUED ▶ LOADING ─ registered ▶ AWAITING_BODY
    found after restart:  FOUND ─ registered ▶ UNCLAIMED ─ requested by the platform ▶ AWAITING_BODY

    AWAITING_BODY ─ the Body has introduced itself ▶ CONNECTING ─ paired ▶ PAIRED
    blocks change:        PAIRED ▶ ADDING_BLOCKS ▶ SWITCHING_BODY ▶ DROPPING_BLOCKS ▶ PAIRED
    larger buffers:       PAIRED ▶ RELEASING_BUFFERS ▶ CONNECTING ▶ PAIRED
    promotion to a Body:  PAIRED ▶ COMPLETING ─ complete ▶ LEAVING_BODY ─ unpaired ▶ BECOMING_BODY ─ promoted ▶ forgotten
    end, from any state:  UNPAIRING ─ unpaired ▶ STOPPING ▶ KILLED ─ gone ▶ forgotten

A pair on two nodes has a half at each coordinator. On the Shadow's node: LOADING ▶ AWAITING_BODY ─ the Body has connected ▶
PAIRED. On the Body's node, where the Shadow has no process: AWAITING_BODY ▶ CONNECTING ▶ PAIRED ⇄ SWITCHING_BODY ▶ UNPAIRING ▶
forgotten.

RELEASING_BUFFERS comes before CONNECTING where a pair needs larger buffers: the Body releases the old ones first. Otherwise the
Body would see the old socket close when the Shadow switches to the new buffers, and mistake that for the end of the Shadow.

Every state but PAIRED and KILLED has a timeout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from gnomon_coordinator.effects import Descriptors
from gnomon_coordinator.protocol import Task
from gnomon_coordinator.table import Status
from gnomon_core.blocks import Layers


class State(Enum):
    """A Shadow's state: the event that it waits for, its timeout (None: no timeout), and the status that the table shows."""

    FOUND = ("its first message", 10.0, Status.SILENT)
    UNCLAIMED = ("a task", 10.0, Status.READY)
    AWAITING_CONTAINER = ("a container", 20.0, Status.LOADING)
    QUEUED = ("its turn to load", 20.0, Status.LOADING)
    LOADING = ("its blocks", 30.0, Status.LOADING)
    AWAITING_BODY = ("its Body's first message", 60.0, Status.READY)
    CONNECTING = ("its Body to connect", 60.0, Status.PAIRING)
    PAIRED = ("nothing", None, Status.PAIRED)
    ADDING_BLOCKS = ("its new blocks", 30.0, Status.PAIRED)
    RELEASING_BUFFERS = ("its Body to release the buffers", 60.0, Status.PAIRED)
    SWITCHING_BODY = ("its Body to change", 60.0, Status.PAIRED)
    DROPPING_BLOCKS = ("its old blocks to be dropped", 30.0, Status.PAIRED)
    COMPLETING = ("the rest of its weights", 60.0, Status.PAIRED)
    LEAVING_BODY = ("its Body to go on alone", 60.0, Status.PAIRED)
    BECOMING_BODY = ("its first message as a Body", 60.0, Status.READY)
    UNPAIRING = ("its Body to unpair", 5.0, Status.ENDING)
    STOPPING = ("its exit", 2.0, Status.ENDING)
    KILLED = ("the end of its process", None, Status.ENDING)

    def __init__(self, awaits: str, timeout_s: float | None, status: Status) -> None:
        self.awaits = awaits
        self.timeout_s = timeout_s
        self.status = status


ENDING = (State.UNPAIRING, State.STOPPING, State.KILLED)
KNOWN_TO_BODY = (
    State.CONNECTING,
    State.PAIRED,
    State.ADDING_BLOCKS,
    State.RELEASING_BUFFERS,
    State.SWITCHING_BODY,
    State.DROPPING_BLOCKS,
    State.COMPLETING,
    State.LEAVING_BODY,
)
"""States in which the Body knows its Shadow."""
PROMOTING = (State.COMPLETING, State.LEAVING_BODY, State.BECOMING_BODY)
"""States of a Shadow that becomes a Body, and goes on where the Body that it works for ends."""

_END = frozenset({State.UNPAIRING, State.STOPPING, State.KILLED})
"""A Shadow that its Body knows is unpaired first; where there is no such Body it is stopped, or killed if the Body has ended."""
_STOP = frozenset({State.STOPPING, State.KILLED})
_KILL = frozenset({State.KILLED})

TRANSITIONS: Mapping[State, frozenset[State]] = {
    State.FOUND: frozenset({State.UNCLAIMED}) | _KILL,
    State.UNCLAIMED: frozenset({State.QUEUED, State.AWAITING_BODY, State.PAIRED}) | _STOP,
    # A container that ends before it has loaded anything is replaced.
    State.AWAITING_CONTAINER: frozenset({State.QUEUED, State.LOADING}),
    State.QUEUED: frozenset({State.LOADING, State.AWAITING_CONTAINER}) | _KILL,
    State.LOADING: frozenset({State.AWAITING_BODY, State.AWAITING_CONTAINER}) | _KILL,
    State.AWAITING_BODY: frozenset(
        {
            State.CONNECTING,
            State.ADDING_BLOCKS,
            # A pair that was found after a restart may be active already, with other buffers or other blocks than requested.
            State.RELEASING_BUFFERS,
            State.PAIRED,
            State.DROPPING_BLOCKS,
        }
    )
    | _STOP,
    State.CONNECTING: frozenset({State.PAIRED, State.DROPPING_BLOCKS}) | _END,
    State.PAIRED: frozenset(
        {
            State.ADDING_BLOCKS,
            State.SWITCHING_BODY,
            State.RELEASING_BUFFERS,
            State.COMPLETING,
            # A repeated request may name a Body of this node where the one before named a Body of another node.
            State.CONNECTING,
        }
    )
    | _END,
    State.ADDING_BLOCKS: frozenset({State.CONNECTING, State.SWITCHING_BODY, State.RELEASING_BUFFERS, State.PAIRED}) | _END,
    # PAIRED: a repeated request names a Body of another node.
    State.RELEASING_BUFFERS: frozenset({State.CONNECTING, State.ADDING_BLOCKS, State.PAIRED}) | _END,
    State.SWITCHING_BODY: frozenset({State.PAIRED, State.DROPPING_BLOCKS}) | _END,
    State.DROPPING_BLOCKS: frozenset({State.PAIRED}) | _END,
    State.COMPLETING: frozenset({State.LEAVING_BODY, State.BECOMING_BODY}) | _END,
    State.LEAVING_BODY: frozenset({State.BECOMING_BODY}) | _END,
    State.BECOMING_BODY: _STOP,
    State.UNPAIRING: _STOP,
    State.STOPPING: _KILL,
    State.KILLED: frozenset(),
}
"""From each state to the states that may follow. To enter a state again, which starts its timeout anew, is always allowed."""


class UndeclaredTransitionError(Exception):
    """A transition that `TRANSITIONS` does not have: a defect of the state machine, which the Shadow's process did not cause."""

    def __init__(self, shadow: Shadow, to: State) -> None:
        super().__init__(f"{shadow.id}: undeclared transition from {shadow.state.name} to {to.name}")
        self.shadow = shadow


@dataclass(slots=True)
class Shadow:
    """A Shadow. `task` is None for one that an earlier coordinator made, until the platform requests it."""

    id: str
    state: State
    task: Task | None = None
    active: Task | None = None
    """The task that the pair has, or is being sent."""
    layers: Layers | None = None
    launch_fds: Descriptors | None = None
    """The order and the log for its container, until it has registered."""
    deadline_s: float | None = None
    container: str | None = None
    """The container that became this Shadow; None while a container is awaited."""
    attempts: int = 0
    loaded: tuple[int, ...] = ()
    """The blocks that it has loaded."""
    claimed_body: str = ""
    """The Body that a Shadow found after a restart names. It takes no place at that Body until the platform requests it."""
    buffer_bytes: tuple[int, int] = (0, 0)
    """Sizes of its pair's buffers, to the Shadow and back."""
    promotion_fds: Descriptors | None = None
    """The order and the channel of the Body that it is to become."""
    has_buffers: bool = False
    """True if the Shadow has reported that it has a partner's buffers."""
    connected: bool = False
    """True if the Body uses the Shadow."""
    reported_paired: bool = False
    """True if the platform was notified that the Shadow works with its Body."""

    def close_launch_fds(self) -> None:
        """Close the descriptors of the order and of the log."""
        if self.launch_fds is not None:
            self.launch_fds.close()
            self.launch_fds = None

    def close_promotion_fds(self) -> None:
        """Close the descriptors of a promotion: the Body's order and its batch channel."""
        if self.promotion_fds is not None:
            self.promotion_fds.close()
            self.promotion_fds = None

    def missing_bytes(self) -> int:
        """Bytes of weights that the Shadow has not loaded."""
        assert self.layers is not None
        return self.layers.parameter_bytes() - self.layers.parameter_bytes(self.loaded)


LOAD_TURN_S = 0.05


class LoadQueue:
    """The queue of Shadows to load. Shadows that share a CPU load one after another, in the order of their requests.

    In parallel, all of them are loaded when the last one is; in turn the first is loaded as if it were alone, and the last no
    later. Example: three loads that cost 11 ms each on one CPU, in parallel: 33, 33 and 33 ms; in turn: 11, 22 and 33 ms.

    A turn has a timeout: a load that takes longer, because it is large or its process is stuck, continues in parallel with the
    next ones. Loads on different CPUs do not wait for each other. A container that is forked for a Shadow does not wait either:
    by the time of its start, the Shadows that were ready have had their turns.
    """

    def __init__(self, shadows: Mapping[str, Shadow]) -> None:
        self._shadows = shadows
        self._turn_ends_s: dict[str, float] = {}

    def start(self, now_s: float) -> list[Shadow]:
        """Start turns: the queued Shadows that may load now."""
        self._turn_ends_s = {name: end_s for name, end_s in self._turn_ends_s.items() if end_s > now_s and self._is_loading(name)}
        busy = {cpu for name in self._turn_ends_s for cpu in _cpus(self._shadows[name])}
        started: list[Shadow] = []
        for shadow in self._queued():
            if busy.isdisjoint(_cpus(shadow)):
                started.append(shadow)
                self._turn_ends_s[shadow.id] = now_s + LOAD_TURN_S
            # A Shadow that waits for one of several CPUs is not overtaken on the others.
            busy |= _cpus(shadow)
        return started

    def due_s(self) -> float | None:
        """The time at which the next turn times out; None if no Shadow waits for one."""
        return min(self._turn_ends_s.values(), default=None) if self._queued() else None

    def _queued(self) -> list[Shadow]:
        return [shadow for shadow in self._shadows.values() if shadow.state is State.QUEUED]

    def _is_loading(self, name: str) -> bool:
        shadow = self._shadows.get(name)
        return shadow is not None and shadow.state is State.LOADING


def _cpus(shadow: Shadow) -> frozenset[int]:
    return frozenset() if shadow.task is None else frozenset(shadow.task.cpus)
