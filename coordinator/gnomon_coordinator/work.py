"""A Shadow under way: what is wanted of it, what it holds, and what is being waited for.

    WAIT ─ a container ▶ TURN ▶ LOAD ─ registered ▶ BODY ─ it has spoken ▶ CONNECT ─ paired ▶ REST ⇄ WIDEN ▶ SWITCH ▶ NARROW
    found after a restart: SPEAK ─ registered ▶ CLAIM ─ wished for ▶ BODY             └▶ UNPAIR ▶ STOP ▶ KILL ▶ gone

REST ─ to be a Body ▶ RISE ─ complete ▶ YIELD ─ unpaired ▶ SERVE ─ the supervisor calls it a Body ▶ forgotten (`promotions`)

A pair on two nodes has a half on each. Where the Shadow is: LOAD ▶ BODY ─ its Body's connection has come ▶ REST. Where its Body
is, and no process to end: BODY ▶ CONNECT ▶ REST ⇄ SWITCH ▶ UNPAIR ▶ forgotten.

Where a pair needs larger buffers, PART comes before CONNECT: the Body lets go of the old ones first. It would take the end of
their socket, when the Shadow moves to the new ones, for the end of the Shadow.

Every step but the resting ones has a bound in time.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from gnomon_coordinator.effects import Papers
from gnomon_coordinator.protocol import Task
from gnomon_coordinator.table import Status
from gnomon_core import shared_memory
from gnomon_core.blocks import Layers


class Step(Enum):
    """What is being waited for, for how many seconds at most (None without a bound), and the status that the table shows."""

    SPEAK = ("its first words", 10.0, Status.SILENT)
    CLAIM = ("a task", 10.0, Status.READY)
    WAIT = ("a container", 20.0, Status.LOADING)
    TURN = ("its turn to load", 20.0, Status.LOADING)
    LOAD = ("its blocks", 30.0, Status.LOADING)
    BODY = ("its Body's first words", 60.0, Status.READY)
    CONNECT = ("its Body", 60.0, Status.PAIRING)
    REST = ("nothing", None, Status.PAIRED)
    WIDEN = ("its new blocks", 30.0, Status.PAIRED)
    PART = ("its Body to give back its buffers", 60.0, Status.PAIRED)
    SWITCH = ("its Body to change", 60.0, Status.PAIRED)
    NARROW = ("its old blocks to go", 30.0, Status.PAIRED)
    RISE = ("the rest of its weights", 60.0, Status.PAIRED)
    YIELD = ("its Body to go on alone", 60.0, Status.PAIRED)
    SERVE = ("its first words as a Body", 60.0, Status.READY)
    UNPAIR = ("its Body to let go", 5.0, Status.ENDING)
    STOP = ("its end", 2.0, Status.ENDING)
    KILL = ("its death", None, Status.ENDING)

    def __init__(self, words: str, bound_s: float | None, status: Status) -> None:
        self.words = words
        self.bound_s = bound_s
        self.status = status


ENDING = (Step.UNPAIR, Step.STOP, Step.KILL)
WITH_BODY = (Step.CONNECT, Step.REST, Step.WIDEN, Step.PART, Step.SWITCH, Step.NARROW, Step.RISE, Step.YIELD)
"""The Body has been told of its Shadow."""
RISING = (Step.RISE, Step.YIELD, Step.SERVE)
"""It becomes a Body, whatever becomes of the one that it works for."""


@dataclass(slots=True)
class Work:
    """One Shadow. `task` is None for one that an earlier coordinator made, until the platform says what it is for."""

    shadow: str
    step: Step
    task: Task | None = None
    doing: Task | None = None
    """The task that the pair has been told of, or is being told of."""
    layers: Layers | None = None
    papers: Papers | None = None
    deadline_s: float | None = None
    container: str | None = None
    """The container that it became; None while one is awaited."""
    attempts: int = 0
    held: tuple[int, ...] = ()
    """The blocks that it has loaded."""
    claims: str = ""
    """Whose Shadow it says that it is, found after a restart. Until it is wished for, that is only its word: nobody's place is
    taken by it."""
    capacity: tuple[int, int] = (0, 0)
    """What its pair's buffers hold, there and back."""
    rising: Papers | None = None
    """The order and the channel of the Body that it is to become."""
    joined: bool = False
    """It says that it has a partner's buffers."""
    connected: bool = False
    """Its Body uses it."""
    paired: bool = False
    """The platform has been told that it works with its Body."""

    def drop_papers(self) -> None:
        """Let go of the order and the log."""
        if self.papers is not None:
            self.papers.close()
            self.papers = None

    def drop_rising(self) -> None:
        """Let go of what it would need as a Body."""
        if self.rising is not None:
            self.rising.close()
            self.rising = None


def capacity(layers: Layers, max_batch: int) -> tuple[int, int]:
    """Bytes of a pair's two buffers, there and back: no run of any blocks needs more, so that blocks can change in place.

    What a run reads was made before it and is read after that; what it makes is read later still. So no run moves more than the
    values that are alive at one border between blocks. Pages that are never touched cost nothing.

    Example: values of 10 and 100 bytes alive at a border, batches of 8: 128 + 832 bytes, each value on a multiple of 64.
    """
    last_read = {name: number for number, block in enumerate(layers.blocks) for name in block.reads}
    last_read |= dict.fromkeys(layers.outputs, len(layers.blocks))
    made = {name for block in layers.blocks for name in block.makes}
    alive = {name for block in layers.blocks for name in block.reads} - made
    there_bytes = back_bytes = 1
    for number, block in enumerate(layers.blocks):
        alive = {name for name in alive if last_read[name] >= number}
        there_bytes = max(there_bytes, _bytes_of(layers, alive, max_batch))
        alive |= {name for name in block.makes if name in last_read}
        back_bytes = max(back_bytes, _bytes_of(layers, {name for name in alive if last_read[name] > number}, max_batch))
    return there_bytes, back_bytes


def _bytes_of(layers: Layers, names: set[str], samples: int) -> int:
    return sum(shared_memory.aligned(samples * layers.value_bytes.get(name, 0)) for name in names)
