"""The cost of handing tensors over between a Body and its Shadow, each on its own CPU: milliseconds per megabyte, each way.

    python -m benchmarks.shadow.hand_over [--quick]

A pair's own data path (`gnomon_runtime.pair.link.Link` over `gnomon_coordinator.server`), used as a batch of 8 uses it. There:
the Body writes its last four rows into the buffer to the Shadow and sends the header; the Shadow checks it and has the tensor.
Back: the Shadow writes its rows and sends the header; the Body, which has come to wait for it meanwhile, has the tensor. That is
one copy each way: either side reads the other's buffer where it is. The rows were made just before, by an operation before which
the other side was told that they follow; it sleeps until then. Beside it: both ways without that, so that the other side is woken
by the header, and what the Body's merge of both sides' rows adds to the way back.
"""

from __future__ import annotations

import os
import select
import signal
import struct
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor

from benchmarks.programs import Pace, as_instance, start, step
from benchmarks.report import Figure, write
from benchmarks.shadow.instances import Cpus, two_cpus
from benchmarks.shadow.models import MEGABYTE, at_quantile
from gnomon_coordinator.server import pair_memory
from gnomon_core import packets
from gnomon_core.shared_memory import aligned
from gnomon_runtime.engine.torch_support import keep_freed_memory
from gnomon_runtime.pair.headers import Kind, Message
from gnomon_runtime.pair.link import DataPath, Link, Outcome, joined

SIZES_MB = (1, 2, 4, 8, 16, 32, 64)
GOAL_MS_PER_MB = 0.15
BATCH, SHADOWS = 8, 4
"""Samples of the batch, and how many of them the Shadow computes."""
MEDIAN_OF = 9
"""Hand-overs of each size, one after the other, whose median is one sample here."""
TIMEOUT_S = 10.0
FORETOLD, ALONE = (1, 2), (0, 1)
"""Operations that a hand-over names: whether the Shadow, too, is to foretell its answer."""
UNFORETOLD, BUSY = ", not foretold", "the Body's processor, both ways"
_FLOAT_BYTES = 4
SETTLE_S = 0.004
"""Pause in seconds before the operation that makes rows, on either side: the other side is asleep by then."""
STAMPS = struct.Struct("<dd")
"""Times at which the Shadow had the rows and began to answer, on the machine's clock."""


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds that one hand-over took, and the merge after it; and what the Body's processor did for both ways."""

    there_s: float
    back_s: float
    merge_s: float
    busy_s: float


@dataclass(frozen=True, slots=True)
class Ends:
    """The Body's end of a pair, and a pipe that tells the Shadow's times of each hand-over."""

    link: DataPath
    stamps: int


def main(pace: Pace) -> None:
    samples = 5 if pace.quick else 21
    found = sampled(pair(two_cpus()), samples)
    figures = [figure_of(way, size_mb, values) for (way, size_mb), values in sorted(found.items())]
    write("shadow_hand_over", figures, repeats=samples, packages=("gnomon", "torch"), folder=pace.results)


def sampled(way_there: AbstractContextManager[Ends], samples: int) -> dict[tuple[str, int], list[float]]:
    """Milliseconds a megabyte, by way and megabytes, over a pair's data path."""
    found: dict[tuple[str, int], list[float]] = defaultdict(list)
    torch.set_num_threads(1)
    keep_freed_memory()
    with way_there as ends:
        for number in range(samples):
            for size_mb in SIZES_MB:
                for way, ms_per_mb in measured(ends, size_mb).items():
                    found[way, size_mb].append(ms_per_mb)
            if number % 5 == 0:
                step(f"{number + 1} of {samples}")
    return found


def measured(ends: Ends, size_mb: int) -> dict[str, float]:
    """Milliseconds a megabyte by way: the median of a few hand-overs of this size, the first of which only warms up."""
    given = torch.rand(BATCH, size_mb * MEGABYTE // (SHADOWS * _FLOAT_BYTES))
    found: dict[str, float] = {}

    def median(values: list[float]) -> float:
        return 1e3 * sorted(values)[len(values) // 2] / size_mb

    for foretold, how in ((True, ""), (False, UNFORETOLD)):
        times = [hand_over_once(ends, given, foretold=foretold) for _ in range(1 + MEDIAN_OF)][1:]
        found[f"there{how}"] = median([each.there_s for each in times])
        found[f"back{how}"] = median([each.back_s for each in times])
        found[f"{BUSY}{how}"] = median([each.busy_s for each in times])
        if foretold:
            found["back and merged"] = median([each.back_s + each.merge_s for each in times])
    return found


def hand_over_once(ends: Ends, given: Tensor, *, foretold: bool) -> Times:
    """One hand-over there and back. The Shadow answers with its input, copied to memory of its own.

    Raises:
        RuntimeError: it came back otherwise, or not at all.

    """
    link, own = ends.link, BATCH - SHADOWS
    time.sleep(SETTLE_S)
    if foretold:
        link.send_hint()
    made = torch.relu(given)
    began_s, busy_s = time.monotonic(), time.thread_time()
    trouble = link.hand_over(*(FORETOLD if foretold else ALONE), [made], own)
    answer = trouble or link.take_back(time.monotonic() + TIMEOUT_S)
    if isinstance(answer, Outcome):
        raise RuntimeError(f"a hand-over came to nothing: {answer}")  # noqa: TRY004 - it is the hand-over that went wrong
    [theirs] = link.back.read(answer.rows)
    back_s = time.monotonic()
    busy_s = time.thread_time() - busy_s
    whole = joined(made[:own], theirs)
    merged_s = time.monotonic()
    if not torch.equal(whole, made):
        raise RuntimeError("other rows came back than were handed over")
    had_s, answered_s = STAMPS.unpack(os.read(ends.stamps, STAMPS.size))
    return Times(had_s - began_s, back_s - answered_s, merged_s - back_s, busy_s)


@contextmanager
def pair(cpus: Cpus) -> Iterator[Ends]:
    """The Body's end, for the length of a block; a process of its own has the Shadow's."""
    before = os.sched_getaffinity(0)
    size_bytes = aligned(max(SIZES_MB) * MEGABYTE)
    stamps, stamp = os.pipe()
    with pair_memory(size_bytes, size_bytes) as (for_body, for_shadow):
        body, shadow = (list(map(os.dup, descriptors)) for descriptors in (for_body, for_shadow))
    child = os.fork()
    if child == 0:
        for descriptor in (*body, stamps):
            os.close(descriptor)
        _be_shadow(shadow, stamp, cpus.shadow)
    for descriptor in (*shadow, stamp):
        os.close(descriptor)
    os.sched_setaffinity(0, {cpus.body})
    link = Link(body, body=True)
    try:
        for buffer in (link.to, link.back):
            buffer.prepare(size_bytes)
        yield Ends(link, stamps)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        link.close()
        os.close(stamps)
        os.sched_setaffinity(0, before)


def _be_shadow(descriptors: list[int], stamp: int, cpu: int) -> NoReturn:
    """Answer every hand-over with the rows that it brought, until the Body has gone."""
    try:
        os.sched_setaffinity(0, {cpu})
        link = Link(descriptors, body=False)
        poll = select.poll()
        poll.register(link.fileno(), select.POLLIN)
        while True:
            poll.poll()
            for asked_for in link.pending() or (link.pending() if link.awaited() else []):
                rows = link.to.read(asked_for.rows)
                had_s = time.monotonic()
                time.sleep(SETTLE_S)
                if (asked_for.begin, asked_for.end) == FORETOLD:
                    link.send_hint()
                answer = [torch.relu(tensor) for tensor in rows]
                answered_s = time.monotonic()
                written = link.back.write(answer) or ()
                os.write(stamp, STAMPS.pack(had_s, answered_s))
                link.send(Message(Kind.DONE, asked_for.sequence, 0, 1, asked_for.samples, written, 0.0))
    except packets.PeerGoneError:
        pass
    finally:
        os._exit(0)


def figure_of(way: str, size_mb: int, values: list[float]) -> Figure:
    goal = GOAL_MS_PER_MB if way in ("there", "back") else None
    return at_quantile(f"{way}, {size_mb:2} MB", values, "ms/MB", at_most=goal, detail=f"medians of {MEDIAN_OF}")


if __name__ == "__main__":
    as_instance()
    start(main, __doc__)
