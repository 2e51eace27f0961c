"""Files that commands write: one that cannot be is told of before the work, and never costs what was found."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.integration.cli.conftest import Recorder, Run

LOAD = ("--rate", "20", "--duration", "1s")
SIMULATE = ("simulate", *LOAD, "--service-time", "10ms", "--requests")
PLAN = ("plan", "--rate", "50", "--service-ms", "40,52", "--slo-ms", "200", "--plot")


@pytest.mark.parametrize("command", [SIMULATE, PLAN], ids=lambda one: one[0])
def test_a_folder_that_is_missing_is_a_wrong_command(gnomon: Run, command: tuple[str, ...]) -> None:
    done = gnomon(*command, "missing/file")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "'missing' is no folder that can be written to" in done.stderr
    assert "Traceback" not in done.stderr


def test_nothing_is_sent_where_the_record_could_not_be_written(gnomon: Run, recorder: Recorder) -> None:
    done = gnomon("replay", f"{recorder.url}/function/echo", *LOAD, "--record", "missing/run.jsonl")
    assert (done.returncode, recorder.requests) == (2, [])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_so_is_a_folder_that_is_somebody_elses(gnomon: Run, tmp_path: Path) -> None:
    folder = tmp_path / "read-only"
    folder.mkdir(mode=0o500)
    assert gnomon(*SIMULATE, str(folder / "requests.jsonl")).returncode == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason=f"{sys.platform} has no device that is always full")
def test_a_disk_that_is_full_costs_the_file_alone(gnomon: Run) -> None:
    done = gnomon(*SIMULATE, "/dev/full")
    assert done.returncode == 1
    assert "requests" in done.stdout
    assert done.stderr == "Error: No space left on device.\n"


def test_a_replays_report_is_there_though_its_record_could_not_be_written(gnomon: Run, recorder: Recorder) -> None:
    done = gnomon("replay", f"{recorder.url}/function/echo", *LOAD, "--record", "/dev/full")
    assert done.returncode == 1
    assert "20 requests" in done.stdout
    assert done.stderr.endswith("Error: No space left on device.\n")
