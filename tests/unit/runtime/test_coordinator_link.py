"""A Body keeps in touch with the coordinator of its node, and costs it nothing where it cannot."""

import socket
import threading
from pathlib import Path

import pytest

from gnomon_runtime.compute_thread import ComputeThread
from gnomon_runtime.coordinator_link import CoordinatorLink
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(60)


def test_reconnects_back_off_while_connections_end_at_once(tmp_path: Path) -> None:
    """Two Bodies that share a pod's socket take each other's place: they did so hundreds of times a second."""
    came, over = [], threading.Event()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(tmp_path / "coordination.sock"))
        listening.listen(8)

        def end_each() -> None:
            while not over.is_set():
                connection, _ = listening.accept()
                connection.close()
                came.append(connection)

        threading.Thread(target=end_each, daemon=True).start()
        CoordinatorLink(tmp_path / "coordination.sock", ComputeThread("body"), lambda connection: connection.close())
        eventually(lambda: len(came) >= 3)
        # 0.25 + 0.5 s lie between the first and the third, and a second before the fourth.
        assert len(came) <= 4
        over.set()
