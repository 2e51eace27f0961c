"""The coordinator's protocol: messages of instances and of the platform, parsed and checked, and the messages to instances.

An instance may run a user's model. Each field of its messages is checked for type, length and bounds, and an instance that sends
anything else (`BadMessageError`) is closed. The platform and the supervisor are trusted; their messages are read by the same
functions, so that a mistake there is seen at once. `gnomon_core.coordination` describes every message.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from gnomon_core.coordination import fitting
from gnomon_core.engines import PROGRAM, RUNNABLE
from gnomon_core.pairs import MAX_SHADOWS

MAX_BLOCKS = 4096
MAX_BATCH = 1024
MAX_PATH = 4096
MAX_CPUS = 4096
MAX_BYTES = 1 << 50
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,299}")
_LETTERS = re.compile(r"[!-~]{1,1000}")


class BadMessageError(ValueError):
    """The message breaks the protocol."""


@dataclass(frozen=True, slots=True)
class Way:
    """The URL at which a Body reaches its Shadow on another node, and the token that the Body sends."""

    url: str
    token: str = field(repr=False)


def read_id(message: Mapping[str, Any], name: str) -> str:
    """An instance id.

    Raises:
        BadMessageError: the field is not valid.

    """
    value = message.get(name)
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise BadMessageError(f"{name} is not a valid id")
    return value


def read_blocks(message: Mapping[str, Any]) -> tuple[int, ...]:
    """Block numbers, ascending and each once."""
    blocks = read_integers(message, "blocks", MAX_BLOCKS, MAX_BLOCKS)
    if any(later <= earlier for earlier, later in pairwise(blocks)):
        raise BadMessageError("blocks are not ascending")
    return blocks


def read_split(message: Mapping[str, Any]) -> tuple[int, ...]:
    """A table from batch size to b_S, in which the Body keeps at least one sample of every split batch."""
    split = read_integers(message, "split", MAX_BATCH, MAX_BATCH)
    if any(share > batch for batch, share in enumerate(split)):
        raise BadMessageError("a split leaves the Body no sample")
    return split


def read_expected(message: Mapping[str, Any]) -> tuple[tuple[float, ...], ...]:
    """Expected milliseconds by run and samples; empty if unknown."""
    rows = read_list(message, "expected_ms", MAX_BLOCKS)
    found: list[tuple[float, ...]] = []
    for row in rows:
        if not isinstance(row, list) or len(row) > MAX_BATCH:
            raise BadMessageError("expected_ms is not a table")
        found.append(tuple(_milliseconds(value) for value in row))
    return tuple(found)


def read_list(message: Mapping[str, Any], name: str, most: int) -> list[Any]:
    """A list of `most` values at most; an empty one where the field is missing.

    Raises:
        BadMessageError: the field is not valid.

    """
    value = message.get(name, [])
    if not isinstance(value, list) or len(value) > most:
        raise BadMessageError(f"{name} is not a list, or too long")
    return value


def read_integers(message: Mapping[str, Any], name: str, most: int, below: int) -> tuple[int, ...]:
    """A list of `most` integers at most, each at least 0 and below a bound.

    Raises:
        BadMessageError: the field is not valid.

    """
    values = read_list(message, name, most)
    if not all(type(value) is int and 0 <= value < below for value in values):
        raise BadMessageError(f"{name} holds something else than small integers")
    return tuple(values)


def read_integer(message: Mapping[str, Any], name: str, least: int, most: int) -> int:
    """An integer within bounds.

    Raises:
        BadMessageError: the field is not valid.

    """
    value = message.get(name)
    # isinstance takes a bool for an int.
    if type(value) is not int or not least <= value <= most:
        raise BadMessageError(f"{name} is not an integer from {least} to {most}")
    return value


def read_milliseconds(message: Mapping[str, Any], name: str) -> float:
    """A time that is finite and not negative.

    Raises:
        BadMessageError: the field is not valid.

    """
    return _milliseconds(message.get(name))


def _milliseconds(value: object) -> float:
    if type(value) not in (int, float) or not isinstance(value, int | float):
        raise BadMessageError("a time is not a number")
    try:
        found = float(value)
    except OverflowError:
        raise BadMessageError("a time is not finite") from None
    if not math.isfinite(found) or found < 0:
        raise BadMessageError("a time is negative or not finite")
    return found


def read_path(value: object) -> str:
    """An absolute path.

    Raises:
        BadMessageError: the field is not valid.

    """
    if not isinstance(value, str) or not value.startswith("/") or len(value) > MAX_PATH or "\0" in value:
        raise BadMessageError("not an absolute path")
    return value


def read_flag(message: Mapping[str, Any], name: str) -> bool:
    """A boolean; false where the field is missing.

    Raises:
        BadMessageError: the field is not valid.

    """
    value = message.get(name, False)
    if not isinstance(value, bool):
        raise BadMessageError(f"{name} is not a boolean")
    return value


def read_way(message: Mapping[str, Any]) -> Way | None:
    """The URL and the token of a Shadow on another node; None for a Shadow on this node.

    Raises:
        BadMessageError: a field is not valid.

    """
    url, token = message.get("url"), message.get("token")
    if url is None and token is None:
        return None
    if not all(isinstance(text, str) and _LETTERS.fullmatch(text) for text in (url, token)):
        raise BadMessageError("url or token is not valid")
    return Way(str(url), str(token))


MAX_REASON = 300
MAX_GRAPH_FILES = 8


@dataclass(frozen=True, slots=True)
class PairReport:
    """A pair that a Body has with one of its Shadows. With `elsewhere` that Shadow is on another node."""

    shadow: str
    blocks: tuple[int, ...]
    split: tuple[int, ...]
    elsewhere: bool = False


@dataclass(frozen=True, slots=True)
class InstanceMessage:
    """A message of an instance. Fields that its kind does not have keep their defaults."""

    say: str
    epoch: int
    shadow: str | None = None
    body: str | None = None
    pairs: tuple[PairReport, ...] = ()
    blocks: tuple[int, ...] = ()
    resident_bytes: int = 0
    load_ms: float = 0.0
    paired: bool = False
    afar: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Task:
    """A Shadow's work for its Body, and the files of its model. `join` are control-group files; paths are in the repository.

    `afar`: the Body is on another node, and connects to this Shadow. `way`: the Shadow is on another node.
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
    engine: str = PROGRAM
    graph: Mapping[str, str] = field(default_factory=dict)
    """The files of the engine's graph by name; none for the layer program."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a Shadow's task."""

    cores: int
    cpus: tuple[int, ...]
    blocks: tuple[int, ...]
    split: tuple[int, ...]
    expected_ms: tuple[tuple[float, ...], ...] = ()

    def applied_to(self, task: Task) -> Task:
        """The task after this change."""
        return replace(task, cores=self.cores, cpus=self.cpus, blocks=self.blocks, split=self.split, expected_ms=self.expected_ms)


def read_instance_message(message: Mapping[str, Any], descriptors: int = 0) -> InstanceMessage:
    """Parse a message of an instance. No message of an instance has descriptors.

    Raises:
        BadMessageError: it is not one of the messages in `gnomon_core.coordination`.

    """
    if descriptors:
        raise BadMessageError("unexpected file descriptors")
    say = message.get("say")
    reader = _READERS.get(say) if isinstance(say, str) else None
    if reader is None:
        raise BadMessageError(f"unknown message {say[:40]!r}" if isinstance(say, str) else "it has no `say`")
    epoch = read_integer(message, "epoch", 0, MAX_BYTES)
    return reader(message, str(say), epoch)


def _bare(_message: Mapping[str, Any], say: str, epoch: int) -> InstanceMessage:
    return InstanceMessage(say, epoch)


def _registered(message: Mapping[str, Any], say: str, epoch: int) -> InstanceMessage:
    return InstanceMessage(
        say,
        epoch,
        shadow=read_id(message, "shadow"),
        body=read_id(message, "body"),
        blocks=read_blocks(message),
        resident_bytes=read_integer(message, "resident_bytes", 0, MAX_BYTES),
        load_ms=read_milliseconds(message, "load_ms"),
        paired=read_flag(message, "paired"),
        afar=read_flag(message, "afar"),
    )


def _body(message: Mapping[str, Any], say: str, epoch: int) -> InstanceMessage:
    pairs: list[PairReport] = []
    for pair in read_list(message, "pairs", MAX_SHADOWS):
        if not isinstance(pair, dict):
            raise BadMessageError("a pair is not an object")
        pairs.append(PairReport(read_id(pair, "shadow"), read_blocks(pair), read_split(pair), read_flag(pair, "elsewhere")))
    if len({pair.shadow for pair in pairs}) < len(pairs):
        raise BadMessageError("a Shadow is listed twice")
    return InstanceMessage(say, epoch, pairs=tuple(pairs))


def _about_shadow(message: Mapping[str, Any], say: str, epoch: int) -> InstanceMessage:
    reason = message.get("reason", "")
    if not isinstance(reason, str):
        raise BadMessageError("the reason is not a string")
    # The reason is logged: one line, no control characters.
    text = "".join(letter if letter.isprintable() else " " for letter in reason[:MAX_REASON])
    # A failure need not name a Shadow: the instance may have none.
    shadow = read_id(message, "shadow") if message.get("shadow") else None
    return InstanceMessage(say, epoch, shadow=shadow, reason=text)


def _complete(message: Mapping[str, Any], say: str, epoch: int) -> InstanceMessage:
    return InstanceMessage(
        say,
        epoch,
        shadow=read_id(message, "shadow"),
        resident_bytes=read_integer(message, "resident_bytes", 0, MAX_BYTES),
        load_ms=read_milliseconds(message, "load_ms"),
    )


def _changed(message: Mapping[str, Any], say: str, epoch: int) -> InstanceMessage:
    # A Shadow need not name itself.
    shadow = read_id(message, "shadow") if message.get("shadow") else None
    return InstanceMessage(say, epoch, shadow=shadow, blocks=read_blocks(message))


_READERS: Mapping[str, Callable[[Mapping[str, Any], str, int], InstanceMessage]] = {
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
    """Parse a request for a Shadow, from the platform.

    Raises:
        BadMessageError: a field is missing or not valid.

    """
    weight_mode = message.get("weight_mode")
    if weight_mode not in ("shared", "private"):
        raise BadMessageError("weight_mode is missing or unknown")
    return Task(
        shadow=read_id(message, "shadow"),
        body=read_id(message, "body"),
        program=read_path(message.get("program")),
        weights=read_path(message.get("weights")),
        layers=read_path(message.get("layers")),
        weight_mode=str(weight_mode),
        cores=read_integer(message, "cores", 1, MAX_CPUS),
        cpus=read_integers(message, "cpus", MAX_CPUS, MAX_CPUS),
        blocks=read_blocks(message),
        split=read_split(message),
        max_batch=read_integer(message, "max_batch", 1, MAX_BATCH),
        expected_ms=read_expected(message),
        join=tuple(read_path(path) for path in read_list(message, "join", 16)),
        afar=read_flag(message, "afar"),
        way=read_way(message),
        engine=read_engine(message),
        graph=read_graph(message),
    )


def read_engine(message: Mapping[str, Any]) -> str:
    """The engine that a model runs on; the layer program's where the field is missing.

    Raises:
        BadMessageError: there is no such engine.

    """
    engine = message.get("engine", PROGRAM)
    if engine not in RUNNABLE:
        raise BadMessageError("the engine is unknown")
    return str(engine)


def read_graph(message: Mapping[str, Any]) -> dict[str, str]:
    """The files of a graph by name.

    Raises:
        BadMessageError: it is no object of a few absolute paths.

    """
    graph = message.get("graph", {})
    if not isinstance(graph, Mapping) or len(graph) > MAX_GRAPH_FILES:
        raise BadMessageError("the graph is not a few files")
    return {str(name)[:MAX_PATH]: read_path(path) for name, path in graph.items()}


def read_change(message: Mapping[str, Any]) -> Change:
    """Parse a change of a Shadow's task, from the platform.

    Raises:
        BadMessageError: a field is missing or not valid.

    """
    return Change(
        cores=read_integer(message, "cores", 1, MAX_CPUS),
        cpus=read_integers(message, "cpus", MAX_CPUS, MAX_CPUS),
        blocks=read_blocks(message),
        split=read_split(message),
        expected_ms=read_expected(message),
    )


def load(task: Task) -> dict[str, Any]:
    """The message that tells a container to become this Shadow."""
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
        **({"engine": task.engine, "graph": dict(task.graph)} if task.graph else {}),
    }


def pair(task: Task) -> dict[str, Any]:
    """The message that tells a Body of its new Shadow."""
    way = {} if task.way is None else {"url": task.way.url, "token": task.way.token}
    return fitting({"do": "pair", "shadow": task.shadow, **_for_body(task), **way})


def join(task: Task, sizes_bytes: tuple[int, int] | None = None) -> dict[str, Any]:
    """The message that tells a Shadow its Body. If that is on another node, the Shadow makes its own buffers, of these sizes."""
    sizes = {} if sizes_bytes is None else {"to_bytes": sizes_bytes[0], "from_bytes": sizes_bytes[1]}
    return {"do": "join", "shadow": task.shadow, "body": task.body, "blocks": task.blocks, "split": task.split, **sizes}


def change_body(task: Task) -> dict[str, Any]:
    """The message that tells a Body to offload other blocks, or other shares."""
    return fitting({"do": "change", "shadow": task.shadow, **_for_body(task)})


def change_shadow(task: Task, blocks: tuple[int, ...]) -> dict[str, Any]:
    """The message that tells a Shadow to hold these blocks."""
    about = {"blocks": blocks, "split": task.split, "cores": task.cores, "cpus": task.cpus}
    return {"do": "change", "shadow": task.shadow, **about}


def unpair(shadow: str) -> dict[str, Any]:
    """The message that tells a Body to work without this Shadow."""
    return {"do": "unpair", "shadow": shadow}


def _for_body(task: Task) -> dict[str, Any]:
    return {"blocks": task.blocks, "split": task.split, "shadow_cores": task.cores, "expected_ms": task.expected_ms}
