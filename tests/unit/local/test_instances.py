"""An instance's life by the words of two: its own, on its channel, and the supervisor's, which knows its process."""

import os
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.functions import FunctionKey
from gnomon_core.launch import Launch, Order, Sandbox
from gnomon_core.wire import Frame, Kind, encode
from gnomon_platforms.local.instances import InstanceContext, LocalInstance
from gnomon_platforms.local.pairs import LocalShadow
from gnomon_platforms.testing import Recorder

INSTANCE = Instance("f-1", "f.openfaas-fn", 1, "here", 1, 0, InstanceState.STARTING, 0.0)
ORDER = Order(Launch("handler", "f", "f-1"), Sandbox())
HELLO = encode(Frame(Kind.HELLO, head=b"{}"))


class Told(Recorder):
    """What the platform's listener is told, and the instance's end of the channel."""

    def __init__(self) -> None:
        super().__init__()
        self.theirs: socket.socket | None = None
        self.context = InstanceContext(self._send, self, lambda: 0.0, lambda *_: None)
        self.life = LocalInstance(INSTANCE, FunctionKey("f"), "bare", self.context)
        self.life.order(ORDER, [], 60.0)

    def _send(self, message: dict[str, Any], descriptors: list[int] | None = None) -> None:
        for number, descriptor in enumerate(descriptors or []):
            if message["do"] == "create" and number == 1:
                self.theirs = socket.socket(fileno=descriptor)
            else:
                os.close(descriptor)

    def say(self) -> None:
        """Its first word, on its way."""
        self.theirs.sendall(HELLO)

    def speak(self) -> None:
        """Its first word, read there and then."""
        self.say()
        self.life.channel._readable()

    def close(self) -> None:
        """The instance and its process have gone."""
        self.life.end(0.0, "the test is over")
        if self.theirs is not None:
            self.theirs.close()


@pytest.fixture
async def told() -> AsyncIterator[Told]:
    told = Told()
    yield told
    told.close()


@pytest.mark.parametrize("order", [("born", "speaks"), ("speaks", "born")])
async def test_an_instance_is_ready_when_it_has_spoken_and_the_node_knows_its_process(told: Told, order: tuple[str, str]) -> None:
    for number, step in enumerate(order):
        assert (told.life.instance.state, told.ready) == (InstanceState.STARTING, {}), f"before step {number}"
        told.life.born(17) if step == "born" else told.speak()
    assert told.life.instance.state is InstanceState.READY
    assert list(told.ready) == ["f-1"]


@pytest.mark.parametrize("born", [False, True])
async def test_instance_is_restarted_once_when_its_supervisor_ends(told: Told, *, born: bool) -> None:
    if born:
        told.life.born(17)
    before = told.theirs
    assert told.life.withdraw()
    before.close()
    told.life.order(ORDER, [], 60.0)
    told.speak()
    assert not told.ready, "its new process is not known"
    told.life.born(18)
    assert (list(told.ready), told.life.pid) == (["f-1"], 18)
    assert not told.life.withdraw(), "it is ready: what ends it now is an end"


async def test_ending_instance_is_not_restarted(told: Told) -> None:
    told.life.born(17)
    told.life.stop()
    assert not told.life.withdraw()


async def test_instance_stopped_early_is_never_ready(told: Told) -> None:
    told.speak()
    told.life.stop()
    told.life.born(17)
    assert told.ready == {}
    told.life.end(0.0, "ended by SIGKILL")
    assert told.times_gone["f-1"] == 1


async def test_a_first_word_that_is_read_at_the_end_comes_too_late(told: Told) -> None:
    told.life.born(17)
    told.say()
    told.life.end(0.0, "ended by SIGKILL")
    assert (told.ready, dict(told.times_gone)) == ({}, {"f-1": 1})


async def test_a_shadow_whose_first_word_as_a_body_is_read_at_its_end_becomes_none(told: Told) -> None:
    risen: list[str] = []
    ends: list[tuple[int, ...]] = []
    shadow = LocalShadow(INSTANCE, FunctionKey("f"), "torch", told.context, lambda _, papers=(): ends.append(papers))
    shadow.promote(ORDER, 0, 60.0, lambda: risen.append("f-1"))
    [(_, theirs)] = ends
    with socket.socket(fileno=os.dup(theirs)) as becoming:
        becoming.sendall(HELLO)
        shadow.end(0.0, "the supervisor has ended")
    assert (risen, dict(told.times_gone)) == ([], {"f-1": 1})
