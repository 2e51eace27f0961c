"""Which build of torch a Body's image gets, and how its build finds it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from deploy import install
from deploy.pack_templates import BODY, locked_build, origin, torch_build


class Index(BaseHTTPRequestHandler):
    """A package index that has torch."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/whl/cpu/torch/" else 404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        del format, args


@pytest.fixture
def index() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Index) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/whl/cpu"
        server.shutdown()


def test_without_a_word_it_is_the_processors_where_that_is_to_be_had(index: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "CPU_INDEX", index)
    assert [torch_build(environment) for environment in ({}, {"TORCH": ""})] == ["cpu", "cpu"]
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        monkeypatch.setattr(install, "CPU_INDEX", f"http://127.0.0.1:{nobody.getsockname()[1]}")
        assert torch_build({}) == "default"


def test_named_requirement_is_packed(index: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "CPU_INDEX", index)
    for build in ("cpu", "default"):
        assert torch_build({"TORCH": build}) == build
        assert origin(BODY, {"TORCH": build}).startswith(f"# torch: {build};")


def test_locked_requirements_are_known() -> None:
    assert BODY.lock.read_text().startswith(f"# torch: {locked_build()};")
