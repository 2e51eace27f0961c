"""Bodies and Shadows on pinned CPUs, and the clock around a batch: from its first byte on the channel to its last answer.

The measuring process plays gateway and coordinator (`tests.pair_harness`). It encodes a batch before the clock starts
and reads the answer's tensors after it has stopped, and it runs on the Shadows' CPU, which is idle while it is busy.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from benchmarks import gnomon
from benchmarks.shadow.models import StoredModel
from gnomon_core.launch import Launch
from gnomon_core.wire import Frame, Kind, Member, encode
from tests.pair_harness import BODY, FUNCTION, MAX_BATCH, OK, Child, Nursery, Task, join, load

EPOCH = 1
_SO_SNDBUFFORCE, _CHANNEL_BYTES = 32, 8 << 20
"""A batch leaves at once, as on a platform's channels."""
PATIENT_MS = 30_000.0
RELATIVE_DIFFERENCE = 1e-5
"""The largest difference from the unsplit model's answer, relative to its largest number: kernels may sum in another order."""


@dataclass(frozen=True, slots=True)
class Cpus:
    """The CPU of the Bodies and the CPU of the Shadows."""

    body: int
    shadow: int

    @property
    def both(self) -> tuple[int, int]:
        return self.body, self.shadow


@dataclass(frozen=True, slots=True)
class Answer:
    """A batch's answer: when it was complete, its rows, and how its hand-overs went."""

    seconds: float
    rows: Tensor
    hand_overs: Sequence[dict[str, Any]]

    @property
    def shared(self) -> bool:
        """True if the batch has the Shadow's rows."""
        return bool(self.hand_overs) and all(hand_over["outcome"] == "answered" for hand_over in self.hand_overs)


class WrongAnswerError(RuntimeError):
    """An instance answered something else than the unsplit model. No figure is worth anything then."""


def two_cpus() -> Cpus:
    """The last two CPUs: the kernel's own work tends to sit on the first. The last is the one that profiles are measured on."""
    shadow, body = sorted(os.sched_getaffinity(0))[-2:]
    return Cpus(body, shadow)


@contextlib.contextmanager
def nursery(cpus: Cpus) -> Iterator[Nursery]:
    """Instances can be born in it. This process runs on the Shadows' CPU meanwhile."""
    before = os.sched_getaffinity(0)
    torch.set_num_threads(1)
    with gnomon.temporary() as folder:
        made = Nursery(folder)
        os.sched_setaffinity(0, {cpus.shadow})
        gc.collect()
        gc.freeze()
        try:
            yield made
        finally:
            os.sched_setaffinity(0, before)
            made.close()


@dataclass(frozen=True)
class Body:
    """A Body and the head of the batches that it takes."""

    child: Child
    head: bytes

    def ask(self, x: Tensor) -> Answer:
        """A batch, timed."""
        [answer] = ask_all([(self, x)])
        return answer

    def frame(self, x: Tensor) -> bytes:
        """The next batch: a member for each sample."""
        self.child.batches += 1
        members = [Member(0, 1, b"", sample.numpy().tobytes()) for sample in x]
        return encode(Frame(Kind.BATCH, self.child.batches, EPOCH, 0.0, self.head, members))


def body_of(place: Nursery, model: StoredModel, cpus: Sequence[int]) -> Body:
    """A ready Body with a thread for each of these CPUs."""
    launch = Launch("model", FUNCTION, BODY, cores=len(cpus), max_batch=MAX_BATCH, options=model.options())
    child = place.born(launch, cpus=tuple(cpus), sandbox=model.sandbox())
    child.channel.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _CHANNEL_BYTES)
    child.hello = child.frame().head_json()
    inputs = [spec.to_json() for spec in model.signature.inputs]
    return Body(child, json.dumps({"kind": "tensors", "inputs": inputs}).encode())


def patient(task: Task) -> Task:
    """The task with a Body that waits for its Shadow far longer than one that serves: a disturbed batch is slow, and no miss."""
    runs = task.model.layers.runs(task.blocks)
    return replace(task, expected_ms=[[PATIENT_MS] * MAX_BATCH for _ in runs])


def shadow_of(place: Nursery, body: Body, task: Task, cpu: int, mode: str = "shared") -> Child:
    """A Shadow that has its blocks and its Body."""
    child = place.empty()
    said = load(child, task, mode=mode, cpus=(cpu,))
    if said["say"] != "registered":
        raise RuntimeError(f"no Shadow: {said['reason']}")
    join(body.child, child, task)
    return child


def let_go(*children: Child) -> None:
    """End instances and give their sockets back."""
    for child in children:
        child.end()
        child.channel.close()
        child.orders.close()


def ask_all(batches: Sequence[tuple[Body, Tensor]]) -> list[Answer]:
    """A batch to each of some Bodies at once. Every answer's time is counted from the first byte of the first batch."""
    frames = [body.frame(x) for body, x in batches]
    began_s = time.perf_counter()
    for (body, _), frame in zip(batches, frames, strict=True):
        body.child.channel.sendall(frame)
    answers = [(body.child.frame(), time.perf_counter()) for body, _ in batches]
    return [_read(frame, at_s - began_s) for frame, at_s in answers]


def check(answer: Answer, expected: Tensor) -> float:
    """The error of an answer against the unsplit model's, relative to its largest number.

    Raises:
        WrongAnswerError: further than `RELATIVE_DIFFERENCE`.

    """
    difference = float((answer.rows - expected).abs().max() / expected.abs().max())
    if not difference <= RELATIVE_DIFFERENCE:
        raise WrongAnswerError(f"an answer is {difference:.3g} from the unsplit model's")
    return difference


def _read(frame: Frame, seconds: float) -> Answer:
    if frame.kind is not Kind.RESULT or any(member.code != OK for member in frame.members):
        raise WrongAnswerError(f"{frame.kind}: {[bytes(member.body[:300]) for member in frame.members]}")
    rows = [torch.frombuffer(bytearray(member.body), dtype=torch.float32) for member in frame.members]
    return Answer(seconds, torch.stack(rows), frame.head_json().get("pair", []))
