"""Hostile bytes on the way between a Body and a Shadow on another node: no crash, no read outside a buffer, no hang.

    python -m tests.fuzz.remote [--quick]

streams  the reader of a stream (`gnomon_runtime.pair.remote_link.Incoming`), on messages with tensors that are damaged, cut off,
         joined and delivered in any pieces. What it lets through is read, and must lie in its buffer.
shadow   `functions/shadow` under gunicorn gets such streams from Bodies with its token, and upgrades that are none. After each
         round it must compute a hand-over rightly.
body     a real Body is paired with a Shadow that answers with such streams: its own answers stay right.

The same seed gives the same cases. A hang ends in a time-out, a crash in a closed socket; either ends the run.
"""

from __future__ import annotations

import contextlib
import random
import socket
import tempfile
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.gnomon import MODELS
from benchmarks.programs import Pace, start, step
from benchmarks.report import write
from benchmarks.shadow.instances import Body, body_of, check, let_go, nursery, patient, two_cpus
from benchmarks.shadow.models import StoredModel, first_share, samples_of, stored
from gnomon_core import packets
from gnomon_runtime.pair.headers import Kind, Message, NonsenseError, encode, tensor_bytes
from gnomon_runtime.pair.link import OwnBuffer
from gnomon_runtime.pair.remote_link import SWITCHING, Incoming, address, connect
from tests.fuzz.hostile import PATIENCE_S, descriptors_of, figures_of
from tests.fuzz.pair import damaged, made_up
from tests.pair_harness import TOKEN, Pod, ServedShadow, Task, order_remote

SEED = 16
GOAL = 20_000
MODEL = "efficientnet-lite0"
SIZE = 1 << 14
PER_ROUND = 50


def main(pace: Pace) -> None:
    scale = 100 if pace.quick else 1
    rng = random.Random(SEED)
    cases: Counter[str] = Counter()
    torch.set_num_threads(1)
    fuzz_streams(rng, 30_000 // scale, cases)
    model = stored(MODEL)
    task = Task(model, first_share(model.layers, 0.3), (0, 1))
    cpus = two_cpus()
    with nursery(cpus) as place, tempfile.TemporaryDirectory(prefix="gnomon-fuzz-") as folder:
        served = ServedShadow(Path(folder), Pod(MODELS, model.reference, task.blocks))
        body = body_of(place, model, (cpus.body,))
        hostile_bodies(rng, served, (body, task), max(PER_ROUND, 2_000 // scale), cases)
        hostile_shadows(rng, body, task, max(10, 500 // scale), cases)
        let_go(body.child)
        served.end()
    figures = figures_of(cases, GOAL / scale, "crashes, hangs and reads outside a buffer")
    write("shadow_fuzz_remote", figures, repeats=1, packages=("gnomon", "torch"), folder=pace.results)


def noise(rng: random.Random, size_bytes: int) -> bytes:
    """A message with what may be its tensors, damaged."""
    message = made_up(rng, size_bytes)
    tail = rng.randbytes(min(tensor_bytes(message), rng.choice((0, 64, 4096))))
    return damaged(rng, encode(message) + tail)


def fuzz_streams(rng: random.Random, count: int, cases: Counter[str]) -> None:
    """Send messages on a stream, in pieces.

    Raises:
        RuntimeError: a tensor lies outside the buffer.

    """
    buffer = OwnBuffer(SIZE)
    [first] = buffer.read(buffer.write([torch.zeros(1, 1)]) or ())
    begin = first.data_ptr()
    for number in range(count):
        near, far = socket.socketpair()
        with near, far:
            far.setblocking(False)  # noqa: FBT003 - the signature is socket's
            raw = b"".join(noise(rng, SIZE) for _ in range(rng.randint(1, 3)))
            cases[f"streams, {_read(rng, (near, far), raw, buffer, begin)}"] += 1
        if number % 10_000 == 0:
            step(f"streams: {number}")


def _read(rng: random.Random, ends: tuple[socket.socket, socket.socket], raw: bytes, buffer: OwnBuffer, begin: int) -> str:
    incoming, read = Incoming(buffer), 0
    ends[0].setblocking(False)  # noqa: FBT003 - as above
    try:
        while raw:
            raw = raw[ends[0].send(raw[: rng.choice((1, 40, 104, 5000, len(raw)))]) :]
            while (message := incoming.take(ends[1])) is not None:
                read += 1
                for row, tensor in zip(message.rows, buffer.read(message.rows), strict=True):
                    tensor.clone()
                    a_view = tensor.is_floating_point() and tensor.numel() > 0
                    if a_view and not begin <= tensor.data_ptr() <= begin + SIZE - row.length:
                        raise RuntimeError(f"a tensor outside the buffer: {row}")
    except NonsenseError:
        return "refused"
    return "read" if read else "not complete"


def hostile_bodies(rng: random.Random, served: ServedShadow, honest: tuple[Body, Task], count: int, cases: Counter[str]) -> None:
    """Bodies that know the token and send anything; in between, one that means it."""
    body, task = honest
    assert isinstance(task.model, StoredModel)
    x = samples_of(task.model, 2)
    expected = body.ask(x).rows
    done = 0
    while done < count:
        for _ in range(PER_ROUND):
            done += 1
            if rng.random() < 0.2:
                _wrong_upgrade(rng, served.url)
                cases["a Shadow, upgrades"] += 1
                continue
            # The last Body may be hanging up yet.
            with contextlib.suppress(packets.PeerGoneError), connect(served.url, TOKEN) as connection:
                connection.settimeout(PATIENCE_S)
                connection.sendall(b"".join(noise(rng, 1 << 20) for _ in range(rng.randint(1, 4))))
            cases["a Shadow, streams"] += 1
        order_remote(body.child, "s-1", patient(task), served.url)
        body.child.expect("paired")
        answer = body.ask(x)
        check(answer, expected)
        if not answer.shared:
            raise RuntimeError("the Shadow does not compute any more")
        body.child.order("unpair", (), {"shadow": "s-1"})
        body.child.say("unpaired")
    most = 64
    if descriptors_of(served.worker) > most:
        raise RuntimeError(f"the Shadow keeps {descriptors_of(served.worker)} descriptors")
    step(f"a Shadow: {done} connections")


def _wrong_upgrade(rng: random.Random, url: str) -> None:
    """A request for the upgrade as no Body of ours makes it. Whatever is answered, it is answered."""
    lines = [
        rng.choice(("GET", "POST", "PUT", "\0")) + " /gnomon/pair HTTP/1.1",
        "Host: shadow",
        "Authorization: " + rng.choice((f"Bearer {TOKEN}", "Bearer", f"Basic {TOKEN}", "Bearer \xff", "")),
        "Connection: " + rng.choice(("close", "Upgrade, close", "keep-alive")),
        "Upgrade: " + rng.choice(("gnomon-pair/2", "websocket", "", "h2c", "gnomon-pair/1" * 99)),
        f"Content-Length: {rng.choice(('0', '5', '-1', 'x'))}",
    ]
    with socket.create_connection(address(url), PATIENCE_S) as connection:
        connection.settimeout(PATIENCE_S)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(4096):
                continue


def hostile_shadows(rng: random.Random, body: Body, task: Task, count: int, cases: Counter[str]) -> None:
    """Shadows that agree, and answer a real Body with anything."""
    assert isinstance(task.model, StoredModel)
    x = samples_of(task.model, 2)
    expected = body.ask(x).rows
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=_answer_with_noise, args=(listener, rng.randint(0, 1 << 30)), daemon=True)
    thread.start()
    for _ in range(count):
        order_remote(body.child, "s-1", task, f"http://127.0.0.1:{listener.getsockname()[1]}", "any")
        body.child.say("paired", "unpaired")
        for _ in range(3):
            check(body.ask(x), expected)
        body.child.order("unpair", (), {"shadow": "s-1"})
        body.child.order("hello")
        body.child.say("body")
        body.child.skipped.clear()
        cases["a Body, pairs"] += 1
    listener.close()
    step(f"a Body: {count} Shadows")


def _answer_with_noise(listener: socket.socket, seed: int) -> None:
    rng = random.Random(seed)
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection, contextlib.suppress(OSError):
            connection.settimeout(PATIENCE_S)
            connection.recv(4096)
            connection.sendall(SWITCHING)
            for _ in range(rng.randint(1, 6)):
                if rng.random() < 0.5:
                    connection.recv(1 << 20)
                message = made_up(rng, SIZE)
                if rng.random() < 0.7:
                    message = _for_a_body(message, rng)
                connection.sendall(damaged(rng, encode(message) + bytes(tensor_bytes(message))))


def _for_a_body(message: Message, rng: random.Random) -> Message:
    """Answers to hand-overs that come, have come, or never were."""
    return replace(message, kind=Kind.DONE, sequence=rng.randint(1, 4))


if __name__ == "__main__":
    start(main, __doc__)
