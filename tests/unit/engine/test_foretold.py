"""Whoever is told that a message follows looks for it without sleeping, for a bounded time, and believes no more than that."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch

from gnomon_core import packets, shared_memory
from gnomon_core.program import Program
from gnomon_runtime.engine.segments import Flow, Segment
from gnomon_runtime.pair.headers import Kind, Message
from gnomon_runtime.pair.link import SOON_S, Link, Outcome

pytestmark = pytest.mark.torch
SIZE = 1 << 16


@pytest.fixture
def ends() -> Iterator[tuple[Link, Link]]:
    """A Body's link and its Shadow's."""
    one, other = packets.socket_pair()
    to, back = shared_memory.make("to", SIZE), shared_memory.make("back", SIZE)
    to_read, back_read = shared_memory.reader(to), shared_memory.reader(back)
    body = Link([one.detach(), to, back_read], body=True)
    shadow = Link([other.detach(), to_read, back], body=False)
    yield body, shadow
    body.close()
    shadow.close()


def answer(shadow: Link, sequence: int) -> None:
    rows = shadow.back.write([torch.ones(2, 4)])
    assert rows is not None
    assert shadow.send(Message(Kind.DONE, sequence, 0, 1, 2, rows))


def test_wake_up_hint_is_no_message(ends: tuple[Link, Link]) -> None:
    body, shadow = ends
    body.foretell()
    assert shadow.pending() == []


def test_data_after_a_wake_up_hint_are_read(ends: tuple[Link, Link]) -> None:
    body, shadow = ends
    body.foretell()
    assert shadow.pending() == []
    assert body.hand_over(0, 1, [torch.ones(2, 4)], 0) is None
    [message] = shadow.pending()
    assert message.kind is Kind.COMPUTE


def test_reader_does_not_poll_without_a_wake_up_hint(ends: tuple[Link, Link]) -> None:
    _, shadow = ends
    began_s = time.thread_time()
    assert not shadow.awaited()
    assert time.thread_time() - began_s < SOON_S


def test_wake_up_hint_polls_for_a_moment_only(ends: tuple[Link, Link]) -> None:
    body, shadow = ends
    body.foretell()
    assert shadow.pending() == []
    began_s = time.thread_time()
    assert not shadow.awaited()
    assert not shadow.awaited()
    assert time.thread_time() - began_s < 2 * SOON_S


def test_the_end_of_the_path_is_found_too(ends: tuple[Link, Link]) -> None:
    body, shadow = ends
    body.foretell()
    assert shadow.pending() == []
    body._socket.close()
    with pytest.raises(packets.PeerGoneError):
        shadow.pending()
    shadow.foretell()


def test_an_answer_that_was_foretold_is_taken(ends: tuple[Link, Link]) -> None:
    body, shadow = ends
    assert body.hand_over(0, 1, [torch.zeros(2, 4)], 0) is None
    [asked] = shadow.pending()
    shadow.foretell()
    answer(shadow, asked.sequence)
    taken = body.take_back(time.monotonic() + 10)
    assert isinstance(taken, Message)
    assert torch.equal(body.back.read(taken.rows)[0], torch.ones(2, 4))


def test_wake_up_hint_without_data_counts_as_late(ends: tuple[Link, Link]) -> None:
    body, shadow = ends
    assert body.hand_over(0, 1, [torch.zeros(2, 4)], 0) is None
    over = threading.Event()

    def foretell() -> None:
        while not over.is_set():
            shadow.foretell()

    thread = threading.Thread(target=foretell)
    thread.start()
    try:
        assert body.take_back(time.monotonic() + 0.02) is Outcome.LATE
    finally:
        over.set()
        thread.join()


def test_a_segment_says_when_only_its_last_operation_is_missing(program: Callable[..., Program]) -> None:
    made = program([("aten.mul.Tensor", ("%x", 2.0), "a"), ("aten.relu.default", ("%a",), "y")], "y")
    segment = Segment(made, Flow(made).border(0, 2), {})
    x, called = torch.tensor([[1.0, -1.0, 2.0, -2.0]]), []
    for _ in range(3):
        [y] = segment.run(1, [x], lambda: called.append(1))
        assert torch.equal(y, torch.tensor([[2.0, 0.0, 4.0, 0.0]]))
    # The first run makes the plan that the others follow.
    assert len(called) == 2
