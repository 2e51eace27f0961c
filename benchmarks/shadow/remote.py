"""A Shadow on another node than its Body, as near as one machine comes to that: over TCP on the loopback interface.

    python -m benchmarks.shadow.remote [--quick]

hand-over  a pair's own data path over a stream (`gnomon_runtime.pair.remote_link`), used as `hand_over` uses the one within a
           node: milliseconds a megabyte, there and back. A copy into the buffer, one into the kernel and one out of it; no wire.
pairs      ResNet50 with one core each: the Body alone, with a Shadow of its node, and with one that `functions/shadow` serves on
           an HTTP port under gunicorn. They take turns; every answer is compared with the unsplit model's.
price      what the profile foretells of the pair over TCP, its network being what the first part has measured, against what it
           took.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

from torch import Tensor

from benchmarks.gnomon import MODELS
from benchmarks.programs import Pace, as_instance, start, step
from benchmarks.report import Figure, write
from benchmarks.shadow.hand_over import GOAL_MS_PER_MB, SETTLE_S, SIZES_MB, STAMPS, Ends, sampled
from benchmarks.shadow.instances import Answer, Body, Cpus, body_of, check, let_go, nursery, patient, shadow_of, two_cpus
from benchmarks.shadow.models import (
    MEGABYTE,
    ONE_EACH,
    StoredModel,
    at_quantile,
    first_share,
    in_mode,
    known,
    measured_profile,
    quantile,
    samples_of,
    stored,
)
from gnomon_core.pairs import Pair, best_split, pair_seconds
from gnomon_core.profiles import ModelProfile, Network
from gnomon_core.shared_memory import aligned
from gnomon_profiler.measuring.cells import fixed_and_per_unit
from gnomon_runtime.pair.headers import Kind, Message
from gnomon_runtime.pair.link import OwnBuffer
from gnomon_runtime.pair.remote_link import SWITCHING, Incoming, Outgoing, RemoteLink, prepare
from tests.pair_harness import Pod, ServedShadow, Task, order_remote

MODEL = "resnet50"
BATCHES = (4, 8)
SHARE = 0.40
"""The most of the weights that the Shadow holds: the blocks from the input on."""
WARM_UPS = 2
ELSEWHERE = "another node"
PREDICTION_GOAL = 1.10
READY_S = 10.0


def main(pace: Pace) -> None:
    cpus = two_cpus()
    found = sampled(streamed(cpus), 2 if pace.quick else 21)
    network = network_of(found)
    step(f"one way: {1e6 * network.fixed_s:.0f} µs and {1e9 * network.seconds_per_byte:.2f} ms/MB")
    figures = [
        at_quantile(f"{way}, {size:2} MB", values, "ms/MB", detail=f"within a node the goal is {GOAL_MS_PER_MB:g}")
        for (way, size), values in sorted(found.items())
        if way != "back and merged"
    ]
    turns = 4 if pace.quick else 30
    model = stored(MODEL)
    profile = replace(measured_profile(model, 2 if pace.quick else 3), network=network)
    for batch, seen in pairs(model, profile, cpus, turns).items():
        figures += figures_of(model, profile, batch, seen)
    write("shadow_remote", figures, repeats=turns, packages=("gnomon", "torch", "torchvision"), folder=pace.results)


# Hand-overs


def network_of(found: dict[tuple[str, int], list[float]]) -> Network:
    """The line through the medians of both ways, as the Profiler fits its own."""
    sizes = [float(size * MEGABYTE) for size in SIZES_MB]
    seconds = [sum(quantile(found[way, size], 0.5) for way in ("there", "back")) / 2e3 * size for size in SIZES_MB]
    return Network(*fixed_and_per_unit(sizes, seconds), "TCP over loopback")


@contextmanager
def streamed(cpus: Cpus) -> Iterator[Ends]:
    """The Body's end of a stream, for the length of a block; a process of its own has the Shadow's."""
    before = os.sched_getaffinity(0)
    size_bytes = aligned(max(SIZES_MB) * MEGABYTE)
    stamps, stamp = os.pipe()
    listener = socket.create_server(("127.0.0.1", 0))
    child = os.fork()
    if child == 0:
        os.close(stamps)
        _be_shadow(listener, stamp, size_bytes, cpus.shadow)
    os.close(stamp)
    os.sched_setaffinity(0, {cpus.body})
    link = RemoteLink(f"http://127.0.0.1:{listener.getsockname()[1]}", "nobody asks for it")
    try:
        for buffer in (link.to, link.back):
            buffer.prepare(size_bytes)
        select.select([link.fileno()], [], [], READY_S)
        link.pending()
        yield Ends(link, stamps)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        link.close()
        listener.close()
        os.close(stamps)
        os.sched_setaffinity(0, before)


def _be_shadow(listener: socket.socket, stamp: int, size_bytes: int, cpu: int) -> NoReturn:
    """Answer every hand-over with the rows that it brought, until the Body has gone."""
    try:
        os.sched_setaffinity(0, {cpu})
        connection, _ = listener.accept()
        connection.recv(4096)
        connection.sendall(SWITCHING)
        prepare(connection)
        to, back = OwnBuffer(size_bytes), OwnBuffer(size_bytes)
        incoming, poll = Incoming(to), select.poll()
        for buffer in (to, back):
            buffer.prepare(size_bytes)
        while True:
            asked_for = incoming.take(connection)
            if asked_for is None:
                poll.register(connection, select.POLLIN)
                poll.poll()
                continue
            had_s = time.monotonic()
            answer = [tensor.clone() for tensor in to.read(asked_for.rows)]
            time.sleep(SETTLE_S)
            answered_s = time.monotonic()
            written = back.write(answer) or ()
            os.write(stamp, STAMPS.pack(had_s, answered_s))
            outgoing = Outgoing(Message(Kind.DONE, asked_for.sequence, 0, 1, asked_for.samples, written, 0.0), back)
            while not outgoing.push(connection):
                poll.register(connection, select.POLLOUT)
                poll.poll()
    except OSError:
        pass
    finally:
        os._exit(0)


# Pairs


@dataclass
class Turns:
    """Latencies of one batch size for each contestant, turn by turn, and how far their answers were from the Body's."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    differences: list[float] = field(default_factory=list)
    lost: int = 0
    """Batches without the Shadow's rows."""


def pairs(model: StoredModel, profile: ModelProfile, cpus: Cpus, turns: int) -> dict[int, Turns]:
    """Turns of every contestant, by batch."""
    near, far = pair_of(profile, None), pair_of(profile, ELSEWHERE)
    found: dict[int, Turns] = {}
    with nursery(cpus) as place, tempfile.TemporaryDirectory(prefix="gnomon-benchmark-") as folder:
        alone, here, there = (body_of(place, model, (cpus.body,)) for _ in range(3))
        shadow = shadow_of(place, here, patient(Task(model, near.blocks, near.split)), cpus.shadow)
        served = ServedShadow(Path(folder), Pod(MODELS, model.reference, far.blocks, cpus=(cpus.shadow,)))
        order_remote(there.child, "s-far", patient(Task(model, far.blocks, far.split)), served.url)
        there.child.expect("paired")
        contestants: dict[str, Callable[[Tensor], Answer]] = {"alone": alone.ask, "node": here.ask, "network": there.ask}
        for batch in BATCHES:
            step(f"{MODEL}: b = {batch}, {turns} turns")
            found[batch] = _turns(contestants, samples_of(model, batch, seed=batch), turns, alone)
        served.end()
        let_go(shadow, *(body.child for body in (alone, here, there)))
    return found


def pair_of(profile: ModelProfile, node: str | None) -> Pair:
    """The pair with the best split, on the Body's node or on another."""
    blocks = first_share(profile.layers, SHARE)
    return Pair(1, blocks, best_split(profile, ONE_EACH, blocks, max(BATCHES), elsewhere=node is not None), node)


def _turns(contestants: dict[str, Callable[[Tensor], Answer]], x: Tensor, turns: int, alone: Body) -> Turns:
    seen, expected = Turns(), alone.ask(x).rows
    for contestant in contestants.values():
        for _ in range(WARM_UPS):
            contestant(x)
    for turn in range(turns):
        for name in list(contestants)[:: -1 if turn % 2 else 1]:
            answer = contestants[name](x)
            seen.seconds[name].append(answer.seconds)
            seen.differences.append(check(answer, expected))
            seen.lost += name != "alone" and not answer.shared
    return seen


def figures_of(model: StoredModel, profile: ModelProfile, batch: int, seen: Turns) -> list[Figure]:
    key, far = f"{MODEL}, b = {batch}", pair_of(profile, ELSEWHERE)
    same = "bit-equal" if not any(seen.differences) else f"within {max(seen.differences):.1e}"
    [run] = model.layers.runs(far.blocks)
    there = far.shadow_samples(batch)
    moved = f"{there * run.input_bytes / MEGABYTE:.1f} MB there, {there * run.output_bytes / MEGABYTE:.1f} MB back"
    answers = f"{there} of {batch} samples, {moved}; answers {same}, {seen.lost} without the Shadow's rows"
    expected_s = known(pair_seconds(profile, 1, far, batch))
    alone_s = seen.seconds["alone"]

    def ratios(name: str) -> list[float]:
        return [mine / value for mine, value in zip(seen.seconds[name], alone_s, strict=True)]

    milliseconds = {name: [1e3 * second for second in seconds] for name, seconds in seen.seconds.items()}
    found = [
        at_quantile(f"{key}: pair over TCP ÷ Body alone", ratios("network"), "", detail=answers),
        at_quantile(f"{key}: pair on one node ÷ Body alone", ratios("node"), ""),
        at_quantile(
            f"{key}: pair over TCP ÷ prediction",
            [value / expected_s for value in seen.seconds["network"]],
            "",
            at_most=PREDICTION_GOAL,
            detail=f"predicted {1e3 * expected_s:.1f} ms",
        ),
        *(at_quantile(f"{key}: {name}", values, "ms") for name, values in milliseconds.items()),
    ]
    return in_mode(found)


if __name__ == "__main__":
    as_instance()
    start(main, __doc__)
