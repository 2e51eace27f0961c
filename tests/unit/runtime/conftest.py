"""Handlers as their authors write them, requests to them, and their answers."""

import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gnomon_core.launch import Launch
from gnomon_core.wire import Frame, Kind, Member, decode, encode
from gnomon_runtime.application import Application
from gnomon_runtime.handler import load_application

META = b"POST\n/a%20b\nx=1&x=2&empty=\nHost: example.org\nX-Token: t\nX-Token: u\nAccept: */*"
Make = Callable[..., Application]


def batch(*bodies: bytes, meta: bytes = META) -> Frame:
    return decode(encode(Frame(Kind.BATCH, 7, members=[Member(0, 1, meta, body) for body in bodies])))


def answer(application: Application, *bodies: bytes, meta: bytes = META) -> list[Member]:
    result = application.run(batch(*bodies, meta=meta))
    assert isinstance(result, Frame)
    assert (result.kind, result.batch_id, len(result.members)) == (Kind.RESULT, 7, len(bodies))
    encode(result)  # whatever it holds can be sent
    return list(result.members)


def headers(member: Member) -> list[str]:
    return member.meta.decode("latin-1").split("\n")


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    def build(source: str, files: dict[str, str] | None = None, **environment: str) -> Application:
        folder = tmp_path / "any-name"
        folder.mkdir()
        for name, text in {"handler.py": source, **(files or {})}.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(textwrap.dedent(text))
        return load_application(Launch("handler", "echo", "echo-1", 2, 8, environment, {"folder": str(folder)}))

    forget_handlers()
    yield build
    forget_handlers()


def forget_handlers() -> None:
    """A process has one handler for its life; this one has had others, also those of tests in other folders."""
    for name in list(sys.modules):  # other threads import meanwhile
        if name == "function" or name.startswith("function."):
            del sys.modules[name]
