"""What instances and the platform say, checked before anything else looks at it.

An instance may run a user's model: of what it says every field is checked (`fields`), and after one that does not fit nothing
more is heard from it. The platform and the supervisor are ours; their messages are read by the same functions, so that a mistake
there shows at once.

The fields of messages, each read by a function that takes nothing on trust: type, length, bounds.

What does not fit is a `BadMessageError`: an instance may run a user's model, and keep to the protocol or not.

The messages to instances, made from tasks. `gnomon_core.coordination` says what they mean.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from gnomon_core.coordination import fitting
from gnomon_core.pairs import MAX_SHADOWS

MAX_BLOCKS = 4096
MAX_BATCH = 1024
MAX_PATH = 4096
MAX_CPUS = 4096
MAX_BYTES = 1 << 50
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,299}")
_LETTERS = re.compile(r"[!-~]{1,1000}")


class BadMessageError(ValueError):
    """A message that nobody who keeps to the protocol sends."""


@dataclass(frozen=True, slots=True)
class Way:
    """Where a Body finds its Shadow on another node, and what it shows there."""

    url: str
    token: str = field(repr=False)


def read_id(message: Mapping[str, Any], name: str) -> str:
    """The id under this name.

    Raises:
        BadMessageError: it is none.

    """
    value = message.get(name)
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise BadMessageError(f"{name} is no id")
    return value


def blocks_of(message: Mapping[str, Any]) -> tuple[int, ...]:
    """Block numbers, ascending and each once."""
    blocks = wholes_of(message, "blocks", MAX_BLOCKS, MAX_BLOCKS)
    if any(later <= earlier for earlier, later in pairwise(blocks)):
        raise BadMessageError("blocks are not ascending")
    return blocks


def split_of(message: Mapping[str, Any]) -> tuple[int, ...]:
    """A table from batch to b_S, in which the Body keeps at least one sample of every batch that is split."""
    split = wholes_of(message, "split", MAX_BATCH, MAX_BATCH)
    if any(there > batch for batch, there in enumerate(split)):
        raise BadMessageError("a split leaves the Body nothing")
    return split


def expected_of(message: Mapping[str, Any]) -> tuple[tuple[float, ...], ...]:
    """Milliseconds by run and samples; nothing where nothing is known."""
    rows = list_of(message, "expected_ms", MAX_BLOCKS)
    found: list[tuple[float, ...]] = []
    for row in rows:
        if not isinstance(row, list) or len(row) > MAX_BATCH:
            raise BadMessageError("expected_ms is no table")
        found.append(tuple(_milliseconds(value) for value in row))
    return tuple(found)


def list_of(message: Mapping[str, Any], name: str, most: int) -> list[Any]:
    """A list of so many values at most; of nothing where it is not there.

    Raises:
        BadMessageError: it is none.

    """
    value = message.get(name, [])
    if not isinstance(value, list) or len(value) > most:
        raise BadMessageError(f"{name} is no list, or too long")
    return value


def wholes_of(message: Mapping[str, Any], name: str, most: int, below: int) -> tuple[int, ...]:
    """So many whole numbers at most, from 0 and below a bound.

    Raises:
        BadMessageError: they are none.

    """
    values = list_of(message, name, most)
    if not all(type(value) is int and 0 <= value < below for value in values):
        raise BadMessageError(f"{name} holds something else than small whole numbers")
    return tuple(values)


def whole_of(message: Mapping[str, Any], name: str, least: int, most: int) -> int:
    """A whole number within bounds.

    Raises:
        BadMessageError: it is none.

    """
    value = message.get(name)
    # A truth value is an int to isinstance.
    if type(value) is not int or not least <= value <= most:
        raise BadMessageError(f"{name} is no whole number from {least} to {most}")
    return value


def milliseconds_of(message: Mapping[str, Any], name: str) -> float:
    """A time that is finite and not negative.

    Raises:
        BadMessageError: it is none.

    """
    return _milliseconds(message.get(name))


def _milliseconds(value: object) -> float:
    if type(value) not in (int, float) or not isinstance(value, int | float):
        raise BadMessageError("a time is no number")
    try:
        found = float(value)
    except OverflowError:
        raise BadMessageError("a time has no end") from None
    if not math.isfinite(found) or found < 0:
        raise BadMessageError("a time is negative or has no end")
    return found


def path_of(value: object) -> str:
    """An absolute path.

    Raises:
        BadMessageError: it is none.

    """
    if not isinstance(value, str) or not value.startswith("/") or len(value) > MAX_PATH or "\0" in value:
        raise BadMessageError("a path is none")
    return value


def truth_of(message: Mapping[str, Any], name: str) -> bool:
    """A truth value; false where it is not there.

    Raises:
        BadMessageError: it is none.

    """
    value = message.get(name, False)
    if not isinstance(value, bool):
        raise BadMessageError(f"{name} is no truth value")
    return value


def way_of(message: Mapping[str, Any]) -> Way | None:
    """Where a Shadow on another node is reached, and the token for it; None for one of this node.

    Raises:
        BadMessageError: these are none.

    """
    url, token = message.get("url"), message.get("token")
    if url is None and token is None:
        return None
    if not all(isinstance(text, str) and _LETTERS.fullmatch(text) for text in (url, token)):
        raise BadMessageError("a url or a token is none")
    return Way(str(url), str(token))


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


def load(task: Task) -> dict[str, Any]:
    """To a container: become this Shadow."""
    return {
        "do": "load",
        "shadow": task.shadow,
        "body": task.body,
        "program": task.program,
        "weights": task.weights,
        "layers": task.layers,
        "weight_mode": task.weight_mode,
        "cores": task.cores,
        "cpus": task.cpus,
        "blocks": task.blocks,
        "split": task.split,
        "afar": task.afar,
    }


def pair(task: Task) -> dict[str, Any]:
    """To the Body: this is your Shadow."""
    way = {} if task.way is None else {"url": task.way.url, "token": task.way.token}
    return fitting({"do": "pair", "shadow": task.shadow, **_for_body(task), **way})


def join(task: Task, sizes_bytes: tuple[int, int] | None = None) -> dict[str, Any]:
    """To the Shadow: this is your Body. One of another node has no buffers: the Shadow makes its own, of these sizes."""
    sizes = {} if sizes_bytes is None else {"to_bytes": sizes_bytes[0], "from_bytes": sizes_bytes[1]}
    return {"do": "join", "shadow": task.shadow, "body": task.body, "blocks": task.blocks, "split": task.split, **sizes}


def change_body(task: Task) -> dict[str, Any]:
    """To the Body: offload other blocks, or other shares."""
    return fitting({"do": "change", "shadow": task.shadow, **_for_body(task)})


def change_shadow(task: Task, blocks: tuple[int, ...]) -> dict[str, Any]:
    """To the Shadow: hold these blocks."""
    about = {"blocks": blocks, "split": task.split, "cores": task.cores, "cpus": task.cpus}
    return {"do": "change", "shadow": task.shadow, **about}


def unpair(shadow: str) -> dict[str, Any]:
    """To the Body: work without this Shadow."""
    return {"do": "unpair", "shadow": shadow}


def _for_body(task: Task) -> dict[str, Any]:
    return {"blocks": task.blocks, "split": task.split, "shadow_cores": task.cores, "expected_ms": task.expected_ms}
