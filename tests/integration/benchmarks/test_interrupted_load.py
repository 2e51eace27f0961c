"""A benchmark that is told to end does not send its load first, and leaves no load generator behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.waiting import eventually

PROGRAM = """
import sys
from concurrent.futures import ThreadPoolExecutor

from benchmarks.programs import ended_well
from gnomon_simulator.replay import Plan, Target, replay_apart

HOUR = Plan([float(second) for second in range(3600)], deadline_s=1.0)


def main():
    target = Target(sys.argv[2])
    if sys.argv[1] == "in threads":
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(replay_apart, [HOUR] * 2, [target] * 2))
    else:
        replay_apart(HOUR, target, processes=2)


if __name__ == "__main__":
    ended_well(main)
"""
WORKERS = 2


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """Starts a benchmark whose load takes an hour; returns once both load generators have sent requests."""
    program = tmp_path / "an_hour.py"
    program.write_text(PROGRAM)
    started: list[subprocess.Popen[bytes]] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60.0)

        def begin(how: str) -> subprocess.Popen[bytes]:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
            process = subprocess.Popen([sys.executable, str(program), how, url], env=environment, stderr=subprocess.DEVNULL)
            started.append(process)
            eventually(lambda: len(generators(process.pid)) >= WORKERS)
            listener.accept()[0].close()
            return process

        yield begin
    for process in started:
        process.kill()
        process.wait()


def generators(pid: int) -> list[int]:
    """The load generators that this process has started."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    spawned = [int(child) for thread in children.parent.parent.iterdir() for child in (thread / "children").read_text().split()]
    return [child for child in spawned if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
@pytest.mark.parametrize("how", ["at once", "in threads"])
def test_terminated_benchmark_ends_without_sending_its_load(start: Callable[[str], subprocess.Popen[bytes]], how: str) -> None:
    process = start(how)
    workers = generators(process.pid)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60.0) == 1
    eventually(lambda: not any(alive(worker) for worker in workers))


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
def test_load_generators_end_with_a_process_that_is_killed(start: Callable[[str], subprocess.Popen[bytes]]) -> None:
    process = start("at once")
    workers = generators(process.pid)
    process.kill()
    process.wait()
    eventually(lambda: not any(alive(worker) for worker in workers))
