"""How a stored call reaches its function: the same path inside the gateway that `/function/…` takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from gnomon_core.errors import INTERNAL_HEADER, GnomonError
from gnomon_core.functions import FunctionKey
from gnomon_gateway.invoke import DEADLINE_HEADER, read_deadline_s

Headers: TypeAlias = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class FunctionAnswer:
    """A whole answer, the function's or ours."""

    status: int
    headers: Headers
    body: bytes

    @property
    def is_ours(self) -> bool:
        """Whether the platform answered and not the function."""
        return self.header(INTERNAL_HEADER) is not None

    def header(self, name: str) -> str | None:
        """The first value of a header."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)


@dataclass(frozen=True, slots=True)
class Invocation:
    """One request to a function. `deadline_s` is how long it may take, None for the function's own deadline."""

    function: FunctionKey
    method: str
    path: str
    query: str
    headers: Headers
    body: bytes
    deadline_s: float | None = None


class Invoke(Protocol):
    """Call a function and wait for its whole answer. A refusal is an answer too, with `X-OpenFaaS-Internal`."""

    async def __call__(self, invocation: Invocation) -> FunctionAnswer: ...


def take_deadline(headers: Headers) -> tuple[float | None, Headers]:
    """The seconds that a caller's `X-Gnomon-Deadline-Ms` allows each try, and the headers that are the function's.

    Raises:
        GnomonError: 400 `invalid_deadline`.

    """
    name = DEADLINE_HEADER.decode()
    allowed_s = [read_deadline_s(value.encode("latin-1", "replace")) for key, value in headers if key.lower() == name]
    return min(allowed_s, default=None), [(key, value) for key, value in headers if key.lower() != name]


def answer_of(error: GnomonError) -> FunctionAnswer:
    """An error of the platform as an answer."""
    return FunctionAnswer(error.status, tuple(error.headers().items()), error.body())
