"""What plays pods in tests of this process: each runs the handler that it was given, whatever ran or begins beside it."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.integration.kubernetes_platform.instance_server import InstanceServer

WORDS = [f"word-{number}" for number in range(16)]


def at_once(answer: Callable[[str], str], words: Iterable[str]) -> list[str]:
    with ThreadPoolExecutor(8) as nodes:
        return list(nodes.map(answer, words))


@pytest.mark.parametrize("each", [map, at_once])
def test_each_instance_runs_its_own_handler(each: Callable[..., Iterable[str]], tmp_path: Path) -> None:
    def answer_of(word: str) -> str:
        folder = tmp_path / word
        folder.mkdir()
        (folder / "handler.py").write_text(f"def handle(event, context):\n    return {word!r}\n")
        server = InstanceServer("127.0.0.1", 0, folder, "token")
        with urllib.request.urlopen(server.address, b"") as answer:
            said: bytes = answer.read()
        server.end()
        return said.decode()

    assert list(each(answer_of, WORDS)) == WORDS
