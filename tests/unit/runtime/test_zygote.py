"""Zygotes."""

import os
import runpy
import selectors
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gnomon_runtime.child_init import Steps
from gnomon_runtime.zygote import rehearsal_of, rehearse
from gnomon_runtime.zygote_table import ZygoteEvents, ZygoteTable

UNTIL_HUNG_UP = "import socket, sys; socket.socket(fileno=int(sys.argv[1])).recv(1)"


class Owner:
    """A table, and what it has told of its zygotes."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.unborn: list[str] = []
        self.all_taken = False
        self.children: list[tuple[str, int]] = []
        events = ZygoteEvents(self.born, self.unborn.append, lambda: None, lambda _: self.all_taken)
        self.table = ZygoteTable(self.selector, lambda event, **details: self.told.append((event, details)), events)

    def born(self, instance: str, pid: int, join: list[str]) -> None:
        del join
        self.children.append((instance, pid))

    def start(self, zygote: str, number: int, python: str = sys.executable, script: str = UNTIL_HUNG_UP) -> None:
        command = [python, "-I", "-S", "-c", script]
        self.table.start({"id": zygote, "start": number, "command": command, "environment": {}}, ())

    def hear(self) -> None:
        """Until the zygote has said something, and its end was told if that ended it."""
        for key, _ in self.selector.select(30.0):
            key.data()

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


def test_restarted_zygote_replaces_the_old_one(owner: Owner) -> None:
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


def test_zygote_that_cannot_start_is_reported_by_its_number(owner: Owner) -> None:
    owner.start("x", 7, "/nowhere/python")
    assert owner.gone() == [("x", 7)]
    owner.table.retire("x")
    assert owner.gone() == [("x", 7)], "it has ended once"


SAYS = """
import json, os, socket, sys
mine = socket.socket(fileno=int(sys.argv[1]))
mine.send({said}.encode())
mine.recv(65536)
mine.recv(1)
"""


@pytest.mark.parametrize(
    "said",
    [
        "'{}'",
        """'{"event": "grown"}'""",
        """'{"event": "spare"}'""",
        """'{"event": "spare", "pid": "1"}'""",
        """'{"event": "spare", "pid": 1}'""",
        """json.dumps({"event": "spare", "pid": os.getppid()})""",
        """json.dumps({"event": "spare", "pid": os.getpid()})""",
        """json.dumps({"event": "born", "id": "i1", "pid": os.getppid()})""",
        """json.dumps({"event": "born", "id": ["i1"], "pid": 999999999})""",
        """'{"event": "warm"}'""",
        """json.dumps({"event": "born", "id": "another", "pid": 999999999})""",
    ],
)
def test_a_zygote_that_speaks_of_what_is_not_its_own_ends_alone(
    owner: Owner, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """It would have the supervisor end, limit or lose whichever process it names: the gateway, or another's instance."""
    owner.start("y", 1)
    owner.start("x", 2, script=SAYS.format(said=said))
    order, log = os.pipe()
    owner.table.fork("x", "i1", (), [order, log])
    owner.hear()
    assert owner.gone() == [("x", 2)]
    assert owner.unborn == ["i1"]
    assert owner.children == []
    assert "zygote x is ended" in capfd.readouterr().err
    assert len(owner.table.pids()) == 1


def test_a_child_of_its_own_that_is_known_as_something_else_is_not_its_to_name(owner: Owner) -> None:
    forked = """
import os, time
child = os.fork()
if not child:
    time.sleep(60)
"""
    owner.all_taken = True
    owner.start("x", 1, script=forked + SAYS.format(said="""json.dumps({"event": "spare", "pid": child})"""))
    owner.hear()
    assert owner.gone() == [("x", 1)]


def test_a_child_of_its_own_is_believed(owner: Owner) -> None:
    script = """
import os, time
child = os.fork()
if not child:
    time.sleep(60)
"""
    owner.start("x", 1, script=script + SAYS.format(said="""json.dumps({"event": "born", "id": "i1", "pid": child})"""))
    order, log = os.pipe()
    owner.table.fork("x", "i1", (), [order, log])
    owner.hear()
    [(instance, pid)] = owner.children
    assert instance == "i1"
    os.kill(pid, 9)
    assert owner.gone() == []


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_all_steps_are_taken() -> None:
    taken: list[int] = []

    def steps() -> Steps:
        for number in range(3):
            taken.append(number)
            yield

    assert rehearse(steps) == []
    assert taken == [0, 1, 2]


def test_failed_rehearsal_is_reported() -> None:
    def steps() -> Steps:
        yield
        raise RuntimeError("no such kernel")

    assert rehearse(steps) == ["rehearsal: RuntimeError: no such kernel"]


def test_only_our_own_modules_have_rehearsals() -> None:
    assert rehearse(rehearsal_of(["json", "gnomon_runtime.zygote"])) == []


MODULE = runpy.run_path(str(Path(__file__).parents[3] / "templates" / "gnomon-body" / "slim_torch.py"))
named_by, slim = MODULE["named_by"], MODULE["slim"]


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """Two libraries of a vendor, of which torch's own names one; its sources lie elsewhere."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    site, source = tmp_path / "site-packages", tmp_path / "empty.c"
    source.write_text("int answer(void) { return 42; }\n")
    vendor = site / "nvidia" / "cu13" / "lib"
    for folder in (vendor, site / "torch" / "lib", site / "triton"):
        folder.mkdir(parents=True)
    for name in ("libcudart.so.13", "libcard.so.1"):
        subprocess.run([compiler, "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", vendor / name, source], check=True)
    (vendor / "libcard.so").symlink_to("libcard.so.1")
    (vendor / "libcudart.so").symlink_to("libcudart.so.13")
    place = "-Wl,-rpath,$ORIGIN/../../nvidia/cu13/lib"
    entry = ["-o", site / "torch" / "lib" / "libtorch_python.so", source, vendor / "libcudart.so.13"]
    subprocess.run([compiler, "-shared", "-fPIC", "-Wl,--no-as-needed", place, *entry], check=True)
    (site / "triton" / "compiler").write_bytes(b"0" * 1000)
    return site


def test_only_what_nothing_loads_is_removed(packages: Path) -> None:
    vendor = packages / "nvidia" / "cu13" / "lib"
    size_bytes = (vendor / "libcard.so.1").stat().st_size
    assert vendor / "libcudart.so.13" in named_by(packages / "torch" / "lib" / "libtorch_python.so")
    assert slim(packages / "torch") == size_bytes + 1000
    assert sorted(path.name for path in vendor.iterdir()) == ["libcudart.so", "libcudart.so.13"]
    assert not (packages / "triton").exists()
    # A second time there is nothing left to remove.
    assert slim(packages / "torch") == 0


def test_a_build_for_the_processor_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "torch" / "lib").mkdir(parents=True)
    (tmp_path / "torch" / "lib" / "libtorch_python.so").write_bytes(b"")
    (tmp_path / "triton").mkdir()
    assert slim(tmp_path / "torch") == 0
    assert (tmp_path / "triton").exists()
