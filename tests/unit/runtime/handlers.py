"""The requests to a handler under test, and its answers."""

from collections.abc import Callable

from gnomon_core.wire import Frame, Kind, Member, decode, encode
from gnomon_runtime.application import Application

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
