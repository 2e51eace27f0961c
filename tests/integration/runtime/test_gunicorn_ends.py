"""How the application of an image ends under real gunicorn: what was begun is answered, and nothing else is waited for."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from tests.integration.runtime.conftest import GUNICORN, Held, Served
from tests.waiting import eventually

SLOW_TO_LOAD = """
import pathlib
import time

pathlib.Path("loading").touch()
end_s = time.monotonic() + 50.0
while time.monotonic() < end_s:
    try:
        time.sleep(0.01)
    except Exception:
        pass

def handle(event, context):
    return event.body
"""


def test_sigterm_ends_readiness_first_and_what_is_in_flight_last(alone: Served, tmp_path: Path) -> None:
    held = Held(alone, tmp_path)
    alone.process.send_signal(signal.SIGTERM)
    eventually(lambda: alone.request("GET", "/_/ready")[0] == 503)
    assert held.release() == 200
    assert alone.process.wait(20) == 0


def test_sigterm_loses_nothing_that_was_connected(serve: Callable[..., Served]) -> None:
    served = serve(GNOMON_QUIET_S="1.5")
    refused = threading.Event()
    lost: list[str] = []
    answered: list[int] = []

    def call_until_refused() -> None:
        while not refused.is_set():
            try:
                connection = socket.create_connection(("127.0.0.1", served.port), timeout=10)
            except ConnectionRefusedError:
                refused.set()
                return
            with closing(connection):
                try:
                    connection.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi")
                    head = connection.makefile("rb").readline()
                except ConnectionError as error:
                    head = repr(error).encode()
                answered.append(1) if b" 200 " in head else lost.append(repr(head))
            if terminated.is_set():
                return  # a caller that has seen the readiness end comes no more

    terminated = threading.Event()
    threads = [threading.Thread(target=call_until_refused) for _ in range(12)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(answered) > 100)
    served.process.send_signal(signal.SIGTERM)
    time.sleep(0.15)  # they go on for a tenth of the quiet time
    terminated.set()
    for thread in threads:
        thread.join(20)
    assert served.process.wait(20) == 0
    assert lost == []


def test_connections_on_which_nothing_was_sent_are_not_waited_for(serve: Callable[..., Served]) -> None:
    served = serve(write_timeout="60s")
    with closing(socket.create_connection(("127.0.0.1", served.port))) as silent:
        time.sleep(5.5)  # after five seconds gunicorn waits for its first byte without a thread
        assert served.end() == 0
        assert silent.recv(1) == b""


def check_ends_at_once(command: Sequence[str], folder: Path, environment: Mapping[str, str], begun: str) -> None:
    """Told to end when it has made the file `begun`, which is the first thing that it does."""
    with subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.DEVNULL) as process:
        try:
            eventually((folder / begun).exists)
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        finally:
            process.kill()


def test_worker_that_just_started_ends_at_once(tmp_path: Path) -> None:
    """As a container's first process, which no SIGTERM ends that it has no handler for."""
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); from gnomon_runtime.serve import main; main()"
    held = tmp_path / "gunicorn" / "app"
    held.mkdir(parents=True)
    for folder in (held, held.parent):
        (folder / "__init__.py").touch()
    # In place of gunicorn's: it takes as long to import as on a node that is busy.
    (held / "wsgiapp.py").write_text("import time; open('importing', 'w').close(); time.sleep(50.0)")
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path)}
    check_ends_at_once([sys.executable, "-c", code], tmp_path, environment, "importing")


def test_worker_that_loads_its_function_ends_at_once(tmp_path: Path) -> None:
    """An import under way may catch anything that is raised, as `hasattr` does, and libraries that try what there is."""
    (tmp_path / "function").mkdir()
    (tmp_path / "function" / "handler.py").write_text(SLOW_TO_LOAD)
    environment = {"PATH": os.environ["PATH"], "write_timeout": "60s"}
    check_ends_at_once([*GUNICORN, "127.0.0.1:0"], tmp_path, environment, "loading")


def test_a_handler_that_cannot_start_ends_the_container(tmp_path: Path) -> None:
    result = subprocess.run(
        [*GUNICORN, "127.0.0.1:0"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert result.returncode != 0
    assert b"holds no handler.py" in result.stderr
