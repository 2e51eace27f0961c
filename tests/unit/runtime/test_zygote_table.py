"""The supervisor's zygotes, whatever their owner asks for in whatever order. The processes are real; none of them can fork."""

import os
import selectors
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gnomon_runtime.zygote_table import Midwife, ZygoteTable

UNTIL_HUNG_UP = "import socket, sys; socket.socket(fileno=int(sys.argv[1])).recv(1)"


class Owner:
    """A table, and what it has told of its zygotes."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.unborn: list[str] = []
        midwife = Midwife(lambda *_: None, self.unborn.append, lambda: None)
        self.table = ZygoteTable(self.selector, lambda event, **details: self.told.append((event, details)), midwife)

    def start(self, zygote: str, number: int, python: str = sys.executable) -> None:
        command = [python, "-I", "-S", "-c", UNTIL_HUNG_UP]
        self.table.start({"id": zygote, "start": number, "command": command, "environment": {}}, ())

    def gone(self) -> list[tuple[str, int]]:
        """Which zygotes have ended, and which start of theirs that was."""
        return [(details["zygote"], details["start"]) for event, details in self.told if event == "zygote_gone"]


@pytest.fixture
def owner() -> Iterator[Owner]:
    owner = Owner()
    yield owner
    for zygote in ("x", "y"):
        owner.table.retire(zygote)
    owner.selector.close()


def test_one_that_is_started_again_takes_the_place_of_the_one_that_is_there(owner: Owner) -> None:
    before = descriptors()
    owner.start("x", 1)
    [first] = owner.table.pids()
    order, log = os.pipe()
    owner.table.fork("x", "i1", (), [order, log])
    owner.start("y", 2)
    owner.start("x", 3)
    assert owner.gone() == [("x", 1)]
    assert owner.unborn == ["i1"], "what the first was to fork is told of"
    assert not Path(f"/proc/{first}").exists()
    assert len(owner.table.pids()) == 2
    # Nobody listens to one that is not there any more: its end of file would never be over.
    assert len(owner.selector.get_map()) == 2
    owner.table.retire("x")
    owner.table.retire("y")
    assert owner.gone() == [("x", 1), ("x", 3), ("y", 2)]
    assert descriptors() == before


def test_one_that_cannot_be_started_is_told_of_by_its_number(owner: Owner) -> None:
    owner.start("x", 7, "/nowhere/python")
    assert owner.gone() == [("x", 7)]
    owner.table.retire("x")
    assert owner.gone() == [("x", 7)], "it has ended once"


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
