"""Hostile messages between a coordinator and those who are ours: the supervisor that started it, the platform that has wishes.

    python -m tests.fuzz.node [--quick]

Neither of them is hostile by itself. But a damaged one must not take its neighbours along: whatever comes over these four ways, a
process that is not the sender lives, answers, and holds no more descriptors than before.

platform to coordinator      a real coordinator gets wishes of wrong types, lengths, ids and descriptors, and answers a ping after
                             each round. After noise that is no message it does not hear that platform any more, and ends well.
supervisor to coordinator    the same over its other socket. Noise is the end of its supervisor: it ends, with status 0.
coordinator to supervisor    a real supervisor starts one hostile coordinator after the other, each with a higher epoch, until the
                             last one behaves; it ends well when its owner goes.
coordinator to platform      the platform's own end on an event loop, which must not be stopped or raise.

The same seed gives the same cases. A hang ends in a time-out, a crash in a wrong status; either ends the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from benchmarks.programs import Pace, start, step
from benchmarks.report import write
from gnomon_core import packets
from gnomon_platforms.local.nodes import LocalNode
from gnomon_platforms.local.pairs import Pairs, ShadowContext
from tests.fuzz.hostile import PATIENCE_S, Coordinator, descriptors_of, figures_of, hostile, keeps_no_more

SEED = 9
GOAL = 40_000
PER_ROUND = 100
WISHES = ("create", "change", "destroy", "pool", "table", "promote", "ping", "", "load")
WISHED = (
    "shadow", "body", "program", "weights", "layers", "weight_mode", "cores", "cpus", "blocks", "split", "max_batch",
    "expected_ms", "zygote", "size", "number", "do",
)  # fmt: skip
EVENTS = ("instance", "gone", "adopted", "promoted", "epoch", "", "hello")
TOLD = ("ready", "registered", "paired", "unpaired", "ending", "failed", "pong", "table", "", "x")
TOLD_FIELDS = ("shadow", "body", "blocks", "split", "reason", "epoch", "number", "rows", "event")
HOSTILE_COORDINATOR = Path(__file__).with_name("hostile_coordinator.py")
LIVES_S = 0.6
"""One that ends sooner is started again after ever longer pauses."""


def main(pace: Pace) -> None:
    scale = 100 if pace.quick else 1
    rng = random.Random(SEED)
    cases: Counter[str] = Counter()
    fuzz_wishes(rng, 15_000 // scale, cases)
    fuzz_events(rng, 15_000 // scale, cases)
    fuzz_supervisor(rng, 3 if pace.quick else 20, cases)
    asyncio.run(fuzz_platform(rng, 10_000 // scale, cases))
    figures = figures_of(cases, GOAL / scale, "crashes and hangs")
    write("shadow_fuzz_node", figures, repeats=1, packages=("gnomon",), folder=pace.results)


def fuzz_wishes(rng: random.Random, count: int, cases: Counter[str]) -> None:
    """A platform that wishes what cannot be; every so often it says what is no message, and a new coordinator begins."""
    done = 0
    while done < count:
        coordinator = Coordinator()
        for _ in range(10):
            for _ in range(PER_ROUND):
                message = hostile(rng, "do", WISHES, WISHED)
                # Nobody makes containers here, and a pool of a thousand would be a thousand wishes.
                if message.get("do") == "pool":
                    message["size"] = min(3, message["size"]) if isinstance(message.get("size"), int) else message.get("size")
                cases[f"platform to coordinator, {_send(rng, coordinator.platform, message)}"] += 1
                done += 1
                coordinator.drain()
            coordinator.ping()
        keeps_no_more(coordinator.process.pid, coordinator.before + 2)
        cases[f"platform to coordinator, {_noise(rng, coordinator.platform)}"] += 1
        coordinator.end()
    step(f"platform to coordinator: {done} wishes")


def fuzz_events(rng: random.Random, count: int, cases: Counter[str]) -> None:
    """A supervisor that tells of instances that are none, with sockets that are none."""
    done = 0
    while done < count:
        coordinator = Coordinator()
        for _ in range(10):
            for _ in range(PER_ROUND):
                message = hostile(rng, "event", EVENTS, ("id", "kind", "pid", "epoch", "event"))
                if rng.random() < 0.3:
                    kind = rng.choice(("body", "shadow", "x"))
                    message |= {"event": "instance", "id": f"i{rng.randrange(20)}", "kind": kind}
                cases[f"supervisor to coordinator, {_send(rng, coordinator.supervisor, message)}"] += 1
                done += 1
            coordinator.drain()
            coordinator.ping()
        cases[f"supervisor to coordinator, {_noise(rng, coordinator.supervisor)}"] += 1
        if coordinator.process.wait(PATIENCE_S):
            raise RuntimeError(f"the coordinator has ended with status {coordinator.process.returncode}")
        coordinator.end()
    step(f"supervisor to coordinator: {done} events")


def fuzz_supervisor(rng: random.Random, rounds: int, cases: Counter[str]) -> None:
    """A real supervisor whose coordinators are hostile, one after the other."""
    owner, theirs = packets.socket_pair()
    owner.settimeout(PATIENCE_S)
    ours, platforms = packets.socket_pair()
    with theirs:
        command = [sys.executable, "-I", "-m", "gnomon_runtime.supervisor", str(theirs.fileno())]
        process = subprocess.Popen(command, pass_fds=(theirs.fileno(),), stderr=subprocess.DEVNULL)
    _event(owner, "hello")
    say = [sys.executable, str(HOSTILE_COORDINATOR), str(rng.randrange(1000)), str(PER_ROUND), str(LIVES_S)]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    packets.send(owner, {"do": "coordinator", "command": say, "environment": environment}, [platforms.fileno()])
    before = 0
    for life in range(rounds):
        started = _event(owner, "coordinator")
        if started["epoch"] != life + 1:
            raise RuntimeError(f"epoch {started['epoch']} after {life}")
        _event(owner, "coordinator_gone")
        cases["coordinator to supervisor"] += PER_ROUND
        before = before or descriptors_of(process.pid)
        keeps_no_more(process.pid, before + 2)
    owner.close()
    ours.close()
    platforms.close()
    if process.wait(PATIENCE_S):
        raise RuntimeError(f"the supervisor has ended with status {process.returncode}")
    step(f"coordinator to supervisor: {rounds} coordinators")


async def fuzz_platform(rng: random.Random, count: int, cases: Counter[str]) -> None:
    """The platform's end, to which a coordinator says anything.

    Raises:
        RuntimeError: an error was raised on the event loop.

    """
    loop = asyncio.get_running_loop()
    raised: list[str] = []
    loop.set_exception_handler(lambda _, context: raised.append(str(context.get("exception"))))
    logging.getLogger("gnomon_platforms").setLevel(logging.CRITICAL)  # a line for each message
    handed: list[int] = []

    def to_supervisor(message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        del message
        handed.extend(descriptors)

    def unused(*_: object) -> Any:
        raise AssertionError

    # No Shadow lives here: of the household nothing but the node is used.
    nobody = cast("Any", None)
    context = ShadowContext(LocalNode((0,), 1, 1 << 30), nobody, nobody, unused, {}, {}, unused, 1.0, unused)
    pairs = Pairs(to_supervisor, context, 0)
    pairs.begin()
    with socket.socket(fileno=handed.pop()) as theirs:
        theirs.setblocking(False)  # noqa: FBT003 - the signature is socket's
        for number in range(count):
            message = hostile(rng, "event", TOLD, TOLD_FIELDS)
            noise = rng.random() < 0.3
            with contextlib.suppress(BlockingIOError):
                said = _noise(rng, theirs) if noise else _send(rng, theirs, message)
                cases[f"coordinator to platform, {said}"] += 1
            if number % 10 == 0:
                await asyncio.sleep(0)
        await asyncio.sleep(0.1)
        pairs.close()
    if raised:
        raise RuntimeError(f"the platform's end raised {len(raised)} errors, {raised[0]} first")
    step(f"coordinator to platform: {count} events")


def _event(owner: socket.socket, wanted: str) -> dict[str, Any]:
    while True:
        message, descriptors = packets.receive(owner)
        for descriptor in descriptors:
            os.close(descriptor)
        if message["event"] == wanted:
            return message


def _send(rng: random.Random, connection: socket.socket, message: dict[str, Any]) -> str:
    """A message in JSON, now and then with descriptors that nobody asked for."""
    if rng.random() < 0.7:
        packets.send(connection, message)
        return "wrong fields"
    nothing = [os.open(os.devnull, os.O_RDONLY) for _ in range(rng.randint(1, packets.MAX_DESCRIPTORS))]
    try:
        packets.send(connection, message, nothing)
    finally:
        for descriptor in nothing:
            os.close(descriptor)
    return "descriptors"


def _noise(rng: random.Random, connection: socket.socket) -> str:
    """Bytes that are no message."""
    noise = rng.randbytes(rng.randint(1, 300))
    connection.send(rng.choice((b"{", b"[]", b"\xff\xfe", b"1" * 5000, b"[" * 60_000, noise)))
    return "noise"


if __name__ == "__main__":
    start(main, __doc__)
