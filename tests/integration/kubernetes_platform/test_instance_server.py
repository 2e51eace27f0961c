"""What plays pods in tests of this process: each runs the handler that it was given, whatever ran here before it."""

from __future__ import annotations

import urllib.request
from pathlib import Path

from tests.integration.kubernetes_platform.instance_server import InstanceServer


def test_each_instance_runs_its_own_handler(tmp_path: Path) -> None:
    answers = []
    for word in ("first", "second"):
        folder = tmp_path / word
        folder.mkdir()
        (folder / "handler.py").write_text(f"def handle(event, context):\n    return {word!r}\n")
        server = InstanceServer("127.0.0.1", 0, folder, "token")
        with urllib.request.urlopen(server.address, b"") as answer:
            answers.append(answer.read())
        server.end()
    assert answers == [b"first", b"second"]
