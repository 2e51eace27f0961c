"""A Body and a Shadow on another node: whatever that does, and whatever the way does, answers are right, in bounded time."""

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from gnomon_core import packets
from gnomon_core.program import Program
from gnomon_runtime.pair.headers import Kind, Message, NonsenseError, encode
from gnomon_runtime.pair.link import Outcome
from gnomon_runtime.pair.orders import REFUSALS
from gnomon_runtime.pair.partner import MAX_MISSES
from gnomon_runtime.pair.remote_link import RemoteLink, way_to
from tests.unit.engine.remote_stage import (
    CALLS,
    MISSES,
    SPLIT,
    TOKEN,
    WEIGHTS,
    PlayedShadow,
    Stage,
    await_ready,
    batch,
    half,
    hang_up,
    honest,
)

pytestmark = pytest.mark.torch


@pytest.fixture
def stage(program: Callable[..., Program]) -> Iterator[Stage]:
    made = Stage(program(CALLS, "y", weights=WEIGHTS))
    yield made
    made.close()


def test_the_answer_is_that_of_the_whole_model(stage: Stage) -> None:
    link = await_ready(stage.link())
    split, partner = stage.pair(link)
    for samples in range(2, 9):
        x = batch(samples, samples)
        assert torch.equal(split.run([x], None)[0], stage.expected(x))
        assert [(timing.outcome, timing.samples) for timing in split.timings] == [(Outcome.ANSWERED, SPLIT[samples - 1])]
    assert partner.over is None
    assert b"GET /gnomon/pair HTTP/1.1\r\n" in stage.shadow.heard
    assert b"Authorization: Bearer of-the-shadow\r\n" in stage.shadow.heard


def test_until_the_shadow_has_agreed_the_body_computes_alone(stage: Stage) -> None:
    link = stage.link()
    split, _ = stage.pair(link)
    x = batch(4)
    if not link.ready:
        assert torch.equal(split.run([x], None)[0], stage.expected(x))
    await_ready(link)
    split.run([x], None)
    assert len(split.timings) == 1


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 401 UNAUTHORIZED\r\nContent-Length: 0\r\n\r\n", "401"),
        (b"nonsense\r\n\r\n", "refuses"),
        (b"", "does not answer"),
        (b"x" * 9000, "does not answer"),
    ],
)
def test_a_shadow_that_refuses_is_gone_with_the_reason(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, answer: bytes, reason: str
) -> None:
    monkeypatch.setattr("gnomon_runtime.pair.remote_link.CONNECT_S", 0.3)
    stage.shadow.answer = answer
    link = stage.link()
    assert select.select([link.fileno()], [], [], 5)[0]
    for _ in range(2):
        with pytest.raises(packets.PeerGoneError, match=reason):
            link.pending()
    assert not link.ready


def test_unreachable_partner_counts_as_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    link = RemoteLink(f"http://127.0.0.1:{port}", TOKEN)
    assert select.select([link.fileno()], [], [], 5)[0]
    with pytest.raises(packets.PeerGoneError, match="cannot be reached"):
        link.pending()
    link.close()


def test_an_order_names_its_way(stage: Stage) -> None:
    link = way_to({"url": stage.shadow.url, "token": TOKEN}, [])
    assert isinstance(link, RemoteLink)
    await_ready(link)
    link.close()
    with pytest.raises(ValueError, match="url"):
        way_to({"url": "ftp://x", "token": TOKEN}, [])
    with pytest.raises(KeyError):
        way_to({"url": stage.shadow.url}, [])
    with pytest.raises(ValueError, match="descriptors"):
        way_to({}, [])


@pytest.mark.parametrize(("act", "outcome"), MISSES, ids=[act.__name__ for act, _ in MISSES])
def test_a_miss_costs_time_and_no_answer_and_three_end_the_pair(
    stage: Stage, act: Callable[[PlayedShadow, Message], None], outcome: Outcome
) -> None:
    split, partner = stage.pair(await_ready(stage.link()), expected_ms=25.0 if outcome is Outcome.LATE else 500.0)
    stage.shadow.act = act
    for miss in range(1, MAX_MISSES + 2):
        x = batch(5, miss)
        assert torch.equal(split.run([x], None)[0], stage.expected(x))
        assert [timing.outcome for timing in split.timings] == ([outcome] if miss <= MAX_MISSES else [])
        assert (partner.over is not None) == (miss >= MAX_MISSES)


def test_network_latency_is_learned_by_the_body(stage: Stage) -> None:
    """The Shadow says 1 ms, and its answers are much longer on their way: they are waited for longer, after the first."""

    def slow_way(shadow: PlayedShadow, asked: Message) -> None:
        time.sleep(0.3)
        honest(shadow, asked)

    link = await_ready(stage.link())
    split, _ = stage.pair(link, expected_ms=50.0)
    stage.shadow.act = slow_way
    expected_s = []
    for turn in range(2):
        x = batch(4, turn)
        assert torch.equal(split.run([x], None)[0], stage.expected(x))
        [timing] = split.timings
        expected_s.append(timing.expected_s)
        if timing.outcome is Outcome.LATE:
            assert select.select([link.fileno()], [], [], 5)[0]
    assert expected_s[0] == 0.05
    assert expected_s[1] > 0.05


def test_an_answer_that_stalls_in_its_middle_is_late(stage: Stage) -> None:
    split, partner = stage.pair(await_ready(stage.link()), expected_ms=25.0)
    stage.shadow.act = half
    for turn in range(MAX_MISSES):
        x = batch(4, turn)
        assert torch.equal(split.run([x], None)[0], stage.expected(x))
    # The first byte of the second answer is taken for one of the first: whatever comes then is nonsense or late.
    assert partner.over is not None


@pytest.mark.parametrize("raw", [b"\xff" * 200, b"GNP1" + b"\xff" * 60, b"HTTP/1.1 200 OK\r\n\r\n" + b"0" * 60])
def test_noise_ends_the_pair(stage: Stage, raw: bytes) -> None:
    split, partner = stage.pair(await_ready(stage.link()))
    stage.shadow.act = lambda shadow, _: shadow.raw(raw)
    outcomes = []
    for turn in range(4):
        x = batch(4, turn)
        assert torch.equal(split.run([x], None)[0], stage.expected(x))
        outcomes += [timing.outcome for timing in split.timings]
    assert outcomes[0] is Outcome.NONSENSE
    assert outcomes[-1] in (Outcome.NONSENSE, Outcome.GONE)
    assert partner.over is not None


def test_a_connection_that_breaks_ends_the_pair_at_once(stage: Stage) -> None:
    split, partner = stage.pair(await_ready(stage.link()))
    stage.shadow.act = hang_up
    x = batch(6)
    assert torch.equal(split.run([x], None)[0], stage.expected(x))
    assert [timing.outcome for timing in split.timings] == [Outcome.GONE]
    assert partner.over == "the Shadow has gone"


def test_a_flood_of_answers_is_nonsense_and_bounded(stage: Stage) -> None:
    link = await_ready(stage.link())
    old = encode(Message(Kind.FAILED, 0, 0, 1, 1))
    stage.shadow.raw(old * 1000)

    def look_on() -> None:
        for _ in range(1000):
            link.pending()
            time.sleep(0.01)

    for _ in range(2):
        with pytest.raises(NonsenseError):
            look_on()


def test_a_hand_over_that_is_still_on_its_way_is_not_overtaken(stage: Stage) -> None:
    """The Shadow stops reading: what was handed over fills the kernel's buffers, and each next one is a miss at once."""
    held = threading.Event()

    def stop_reading(_shadow: PlayedShadow, _asked: Message) -> None:
        held.wait(10)

    stage.shadow.act = stop_reading
    link = await_ready(stage.link())
    link.to.prepare(64 << 20)
    stage.shadow.to.prepare(64 << 20)
    rows = [torch.ones(2, 8 << 20)]
    assert link.hand_over(0, 1, [torch.ones(1, 4)], 0) is None
    assert link.hand_over(0, 1, rows, 0) is None
    began_s = time.monotonic()
    assert [link.hand_over(0, 1, rows, 0) for _ in range(3)] == [Outcome.FULL] * 3
    # Nobody reads for ten seconds.
    assert time.monotonic() - began_s < 5.0
    held.set()


def test_links_leave_no_thread_and_no_descriptor(stage: Stage) -> None:
    def held() -> tuple[int, int]:
        return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()

    await_ready(stage.link())
    before = held()
    for turn in range(20):
        link = RemoteLink(stage.shadow.url if turn % 2 else "http://127.0.0.1:1", TOKEN)
        if turn % 4 == 3:
            time.sleep(0.01)
        link.close()
    until_s = time.monotonic() + 10
    while held() > before and time.monotonic() < until_s:
        time.sleep(0.01)
    assert held() <= before
    assert os.getpid()


def test_a_body_that_may_have_no_thread_refuses_the_shadow_and_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_thread: threading.Thread) -> None:
        # What Python says where a pod has as many as it may.
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    before = eventfds()
    with pytest.raises(REFUSALS, match="no thread"):
        way_to({"url": "http://127.0.0.1:9", "token": TOKEN}, [])
    # Those of other tests' links may be closed meanwhile.
    assert eventfds() <= before


def eventfds() -> int:
    """Those of this process that are open."""
    found = 0
    for one in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found += "eventfd" in str(one.readlink())
    return found
