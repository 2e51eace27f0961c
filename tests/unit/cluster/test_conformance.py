"""Records of conformance runs."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

import pytest

from tests.cluster import cluster, machine
from tests.cluster.conformance import Comparison, record
from tests.cluster.phases import Phases, Trouble
from tests.cluster.processes import Process, Programs, began
from tests.cluster.settings import Folders

STOCK = """\
--- PASS: TestRouteCreation (8.12s)
--- PASS: TestRevisionTimeout (40.00s)
    --- PASS: TestRevisionTimeout/does_not_exceed (12.00s)
    --- PASS: TestRevisionTimeout/exceeds (22.00s)
--- FAIL: TestMustHaveCgroupConfigured (4.00s)
--- SKIP: TestContainerErrorMsg (0.00s)
"""
OURS = """\
--- PASS: TestRouteCreation (9.00s)
--- FAIL: TestRevisionTimeout (40.00s)
    --- PASS: TestRevisionTimeout/does_not_exceed (12.00s)
    --- FAIL: TestRevisionTimeout/exceeds (22.00s)
--- FAIL: TestMustHaveCgroupConfigured (4.00s)
"""


def compared(*said: tuple[str, str]) -> Comparison:
    found = Comparison()
    for name, text in said:
        found.add(name, "runtime", text)
    return found


def test_tests_that_only_the_stock_class_passes_are_named() -> None:
    found = compared(("kpa", STOCK), ("gnomon", OURS))
    assert found.lost() == ["runtime/TestRevisionTimeout", "runtime/TestRevisionTimeout/exceeds"]
    kept = record(found, parallel=2)
    assert kept["passes_by_the_stock_class_only"] == found.lost()
    assert kept["tests"]["runtime/TestContainerErrorMsg"] == {"kpa": "SKIP", "gnomon": "-"}
    assert kept["versions"]["knative.dev/serving"].startswith("v0.")
    assert "kpa: 4 PASS, 1 FAIL, 1 SKIP, 0 -" in found.lines()


def test_a_test_that_did_not_end_is_lost_where_the_stock_class_passes_it() -> None:
    assert compared(("kpa", STOCK), ("gnomon", "panic: test timed out")).lost() == compared(("kpa", STOCK)).passed()


def test_by_one_class_alone_what_fails_is_lost() -> None:
    assert compared(("gnomon", OURS)).lost() == [
        "runtime/TestMustHaveCgroupConfigured",
        "runtime/TestRevisionTimeout",
        "runtime/TestRevisionTimeout/exceeds",
    ]


def test_a_program_is_ended_by_another_reader_of_the_record(tmp_path: Path) -> None:
    Programs(tmp_path).start("sleeper", ["sleep", "600"])
    (process,) = Programs(tmp_path).all()
    assert process.runs()
    process.end(patience_s=5)
    assert not process.runs()


def test_a_program_that_does_not_listen_is_killed(tmp_path: Path) -> None:
    script = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); signal.pause()"
    programs = Programs(tmp_path)
    process = programs.start("deaf", [sys.executable, "-c", script])
    programs.wait(process, lambda: "deaf" in programs.last_words("deaf"), limit_s=60)
    process.end(patience_s=0.05)
    assert not process.runs()


def test_a_number_that_the_kernel_gave_to_somebody_else_is_left_alone() -> None:
    """Our own number, with a beginning that is not ours: were it signalled, this test would not go on."""
    mine = began(os.getpid())
    assert mine is not None
    other = Process("other", os.getpid(), mine - 1)
    assert not other.runs()
    other.end(patience_s=0.01)


def test_output_of_a_program_that_fails_to_start_is_quoted(tmp_path: Path) -> None:
    programs = Programs(tmp_path)
    process = programs.start("short", ["sh", "-c", "echo no such flag; exit 2"])
    with pytest.raises(Trouble, match="no such flag"):
        programs.wait(process, lambda: False, limit_s=60)


def test_new_leftovers_are_reported() -> None:
    before = {"mounts": ["/", "/gone"], "interfaces": ["lo"]}
    after = {"mounts": ["/", "/new"], "interfaces": ["lo", "veth1"]}
    assert machine.left(before, after) == ["mounts: /new", "interfaces: veth1"]


def test_ending_what_never_began_does_nothing(tmp_path: Path) -> None:
    phases = Phases(silent=True)
    cluster.end(Folders(cache=tmp_path, state=tmp_path / "state"), phases)
    assert phases.took_s == {}


def test_an_end_ends_the_recorded_programs_and_removes_the_state(tmp_path: Path) -> None:
    """A boot that was killed before it looked at the machine leaves this: only programs and files are there to be removed."""
    folders = Folders(cache=tmp_path, state=tmp_path / "state")
    folders.state.mkdir()
    process = Programs(folders.state).start("sleeper", ["sleep", "600"])
    assert json.loads((folders.state / "processes.json").read_text())[0]["name"] == "sleeper"
    cluster.end(folders, Phases(silent=True))
    assert not process.runs()
    assert not folders.state.exists()


def test_second_user_of_the_cluster_waits_with_a_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done: list[str] = []
    lock = tmp_path / "lock"

    def second() -> None:
        with Phases().alone(lock, "compiles"):
            done.append("second")

    with Phases().alone(lock, "compiles"):
        waiting = threading.Thread(target=second)
        waiting.start()
        while "waiting for another command that compiles" not in capsys.readouterr().out:
            waiting.join(0.01)
        done.append("first")
    waiting.join()
    assert done == ["first", "second"]
