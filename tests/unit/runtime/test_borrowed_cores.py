"""An instance uses as many cores for a batch as the batch says that it has borrowed."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from gnomon_core.wire import Frame, Kind, Member, decode, encode
from gnomon_runtime.instance import FrameSocket, Instance


class Recording:
    """An application that records the number of cores before each batch. After each batch it calls `ran`."""

    def __init__(self, ran: Callable[[], None]) -> None:
        self.events: list[str] = []
        self._ran = ran

    def hello(self) -> Mapping[str, Any]:
        return {}

    def resize(self, cores: int) -> None:
        self.events.append(f"{cores} cores")

    def run(self, batch: Frame) -> Frame:
        self.events.append(f"batch {batch.batch_id}")
        self._ran()
        return Frame(Kind.RESULT, batch.batch_id, members=[Member(200, 1, b"", b"")])


@pytest.fixture(autouse=True)
def handler_of_sigterm() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def batch(number: int, cores: int = 0) -> Frame:
    return Frame(Kind.BATCH, number, members=[Member(0, 1, b"", b"")], cores=cores)


def resize(cores: int) -> Frame:
    return Frame(Kind.RESIZE, head=json.dumps({"cores": cores}).encode())


def events_of(*frames: Frame) -> list[str]:
    """The work of an instance that gets these frames, up to one batch at a time."""
    ours, theirs = socket.socketpair()
    left = list(frames)

    def send() -> None:
        while left:
            frame = left.pop(0)
            ours.sendall(encode(frame))
            if frame.kind is Kind.BATCH:
                return
        ours.shutdown(socket.SHUT_WR)

    with ours, theirs:
        application = Recording(send)
        send()
        Instance(FrameSocket(theirs), application).serve()
    return application.events


def test_each_batch_has_the_cores_that_it_has_borrowed() -> None:
    found = events_of(batch(1, 4), batch(2, 4), batch(3, 1), batch(4, 4))
    assert found == ["4 cores", "batch 1", "batch 2", "1 cores", "batch 3", "4 cores", "batch 4"]


def test_a_batch_without_a_number_has_all_the_cores_of_its_instance() -> None:
    assert events_of(batch(1), resize(2), batch(2)) == ["batch 1", "2 cores", "batch 2"]


def test_a_batch_after_a_resize_has_what_it_has_borrowed_again() -> None:
    found = events_of(batch(1, 4), resize(2), batch(2, 4))
    assert found == ["4 cores", "batch 1", "2 cores", "4 cores", "batch 2"]


def test_a_frame_keeps_its_number_of_cores() -> None:
    assert decode(encode(batch(1, 3))).cores == 3
    assert decode(encode(batch(1))).cores == 0
