"""What a coordinator may have ended: Shadows and containers, and no Body, whatever it believes of it."""

import os
import selectors
import signal
import socket
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from gnomon_runtime.coordinator_guard import CoordinatorGuard

pytestmark = pytest.mark.timeout(60)
KILLER = """
import socket, sys
from gnomon_core import packets
supervisor = socket.socket(fileno=int(sys.argv[1]))
for name in ("risen", "shadow"):
    packets.send(supervisor, {"do": "kill", "id": name})
supervisor.recv(1)
"""


def test_promoted_body_is_not_killed_by_an_outdated_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its coordinator gave it up, because it did not listen, in the moment in which it answered its first batch."""
    said: list[Mapping[str, Any]] = []
    with selectors.DefaultSelector() as selector:
        keeper = CoordinatorGuard(selector, lambda *_, **__: None, lambda message, _: said.append(message))
        ends = [keeper.open(name, "shadow") for name in ("risen", "shadow")]
        keeper.promoted("risen")
        ours, theirs = socket.socketpair()
        with ours, theirs:
            environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
            keeper.begin({"command": [sys.executable, "-c", KILLER], "environment": environment}, [theirs.fileno()])
            while not said:
                for key, _ in selector.select():
                    key.data()
        assert said == [{"do": "kill", "id": "shadow"}]
        pid = keeper.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        # It is the last one.
        monkeypatch.setattr(keeper, "_start", lambda: None)
        assert keeper.ended(*os.waitpid(pid, 0))
        for name, end in zip(("risen", "shadow"), ends, strict=True):
            keeper.gone(name)
            end.close()
