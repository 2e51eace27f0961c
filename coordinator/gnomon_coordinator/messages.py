"""What instances and the platform say, checked before anything else looks at it.

An instance may run a user's model: of what it says every field is checked (`fields`), and after one that does not fit nothing
more is heard from it. The platform and the supervisor are ours; their messages are read by the same functions, so that a mistake
there shows at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gnomon_coordinator.fields import (
    MAX_BATCH,
    MAX_BYTES,
    MAX_CPUS,
    BadMessageError,
    Way,
    blocks_of,
    expected_of,
    list_of,
    milliseconds_of,
    path_of,
    read_id,
    split_of,
    truth_of,
    way_of,
    whole_of,
    wholes_of,
)
from gnomon_core.pairs import MAX_SHADOWS

MAX_REASON = 300


@dataclass(frozen=True, slots=True)
class PairSaid:
    """What a Body says that it does with one of its Shadows, which may be `elsewhere`, on another node."""

    shadow: str
    blocks: tuple[int, ...]
    split: tuple[int, ...]
    elsewhere: bool = False


@dataclass(frozen=True, slots=True)
class Said:
    """A message from an instance. Fields that its kind does not have keep their defaults."""

    say: str
    epoch: int
    shadow: str | None = None
    body: str | None = None
    pairs: tuple[PairSaid, ...] = ()
    blocks: tuple[int, ...] = ()
    resident_bytes: int = 0
    load_ms: float = 0.0
    paired: bool = False
    afar: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Task:
    """What a Shadow does for its Body, and what it is made of. `join` are control-group files; paths are in the repository.

    `afar`: its Body is on another node, and comes to it. `way`: it is itself on another node, where its Body goes to it.
    """

    shadow: str
    body: str
    program: str
    weights: str
    layers: str
    weight_mode: str
    cores: int
    cpus: tuple[int, ...]
    blocks: tuple[int, ...]
    split: tuple[int, ...]
    max_batch: int
    expected_ms: tuple[tuple[float, ...], ...] = ()
    join: tuple[str, ...] = ()
    afar: bool = False
    way: Way | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """What a Shadow is to do instead."""

    cores: int
    cpus: tuple[int, ...]
    blocks: tuple[int, ...]
    split: tuple[int, ...]
    expected_ms: tuple[tuple[float, ...], ...] = ()

    def applied_to(self, task: Task) -> Task:
        """The task with this in it."""
        return replace(task, cores=self.cores, cpus=self.cpus, blocks=self.blocks, split=self.split, expected_ms=self.expected_ms)


def read_said(message: Mapping[str, Any], descriptors: int = 0) -> Said:
    """What an instance says, with how many descriptors: no message of an instance has any.

    Raises:
        BadMessageError: it is not one of the messages in `gnomon_core.coordination`.

    """
    if descriptors:
        raise BadMessageError("descriptors where none belong")
    say = message.get("say")
    reader = _READERS.get(say) if isinstance(say, str) else None
    if reader is None:
        raise BadMessageError(f"it says {say[:40]!r}" if isinstance(say, str) else "it says nothing")
    epoch = whole_of(message, "epoch", 0, MAX_BYTES)
    return reader(message, str(say), epoch)


def _bare(_message: Mapping[str, Any], say: str, epoch: int) -> Said:
    return Said(say, epoch)


def _registered(message: Mapping[str, Any], say: str, epoch: int) -> Said:
    return Said(
        say,
        epoch,
        shadow=read_id(message, "shadow"),
        body=read_id(message, "body"),
        blocks=blocks_of(message),
        resident_bytes=whole_of(message, "resident_bytes", 0, MAX_BYTES),
        load_ms=milliseconds_of(message, "load_ms"),
        paired=truth_of(message, "paired"),
        afar=truth_of(message, "afar"),
    )


def _body(message: Mapping[str, Any], say: str, epoch: int) -> Said:
    pairs: list[PairSaid] = []
    for pair in list_of(message, "pairs", MAX_SHADOWS):
        if not isinstance(pair, dict):
            raise BadMessageError("a pair is none")
        pairs.append(PairSaid(read_id(pair, "shadow"), blocks_of(pair), split_of(pair), truth_of(pair, "elsewhere")))
    if len({pair.shadow for pair in pairs}) < len(pairs):
        raise BadMessageError("it has a Shadow twice")
    return Said(say, epoch, pairs=tuple(pairs))


def _about_shadow(message: Mapping[str, Any], say: str, epoch: int) -> Said:
    reason = message.get("reason", "")
    if not isinstance(reason, str):
        raise BadMessageError("the reason is no text")
    # What an instance writes ends in logs: one line, no control characters.
    words = "".join(letter if letter.isprintable() else " " for letter in reason[:MAX_REASON])
    # An instance that cannot do what it is asked for may have no Shadow to name.
    shadow = read_id(message, "shadow") if message.get("shadow") else None
    return Said(say, epoch, shadow=shadow, reason=words)


def _complete(message: Mapping[str, Any], say: str, epoch: int) -> Said:
    return Said(
        say,
        epoch,
        shadow=read_id(message, "shadow"),
        resident_bytes=whole_of(message, "resident_bytes", 0, MAX_BYTES),
        load_ms=milliseconds_of(message, "load_ms"),
    )


def _changed(message: Mapping[str, Any], say: str, epoch: int) -> Said:
    # A Shadow need not name itself.
    shadow = read_id(message, "shadow") if message.get("shadow") else None
    return Said(say, epoch, shadow=shadow, blocks=blocks_of(message))


_READERS: Mapping[str, Callable[[Mapping[str, Any], str, int], Said]] = {
    "empty": _bare,
    "stale": _bare,
    "registered": _registered,
    "body": _body,
    "paired": _about_shadow,
    "unpaired": _about_shadow,
    "failed": _about_shadow,
    "changed": _changed,
    "complete": _complete,
}


def read_task(message: Mapping[str, Any]) -> Task:
    """A Shadow to be made, as the platform asks for it.

    Raises:
        BadMessageError: something is missing or wrong.

    """
    weight_mode = message.get("weight_mode")
    if weight_mode not in ("shared", "private"):
        raise BadMessageError("no weight mode")
    return Task(
        shadow=read_id(message, "shadow"),
        body=read_id(message, "body"),
        program=path_of(message.get("program")),
        weights=path_of(message.get("weights")),
        layers=path_of(message.get("layers")),
        weight_mode=str(weight_mode),
        cores=whole_of(message, "cores", 1, MAX_CPUS),
        cpus=wholes_of(message, "cpus", MAX_CPUS, MAX_CPUS),
        blocks=blocks_of(message),
        split=split_of(message),
        max_batch=whole_of(message, "max_batch", 1, MAX_BATCH),
        expected_ms=expected_of(message),
        join=tuple(path_of(path) for path in list_of(message, "join", 16)),
        afar=truth_of(message, "afar"),
        way=way_of(message),
    )


def read_change(message: Mapping[str, Any]) -> Change:
    """What a Shadow is to do instead, as the platform asks for it.

    Raises:
        BadMessageError: something is missing or wrong.

    """
    return Change(
        cores=whole_of(message, "cores", 1, MAX_CPUS),
        cpus=wholes_of(message, "cpus", MAX_CPUS, MAX_CPUS),
        blocks=blocks_of(message),
        split=split_of(message),
        expected_ms=expected_of(message),
    )
