"""Functions that do what a test says, none of it good, and ways to ask them for it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import urllib3

from tests.waiting import eventually

if TYPE_CHECKING:
    from tests.integration.hostile.conftest import Attacked

IMAGE = "hostile/villain:1"
DEADLINE_S, HASTE_S = 2.0, 0.5
ANNOTATIONS = {"gnomon/deadline-ms": "2000", "gnomon/autoscaler": "fixed"}
_numbers = itertools.count(1)


@dataclass
class Function:
    gateway: Attacked
    name: str

    def call(self, deed: str, argument: object = "", body: bytes = b"x", **headers: str) -> urllib3.BaseHTTPResponse:
        return self.gateway.call("POST", f"/function/{self.name}/{quote(deed)}/{argument}", body, **headers)

    def shell(self, script: str) -> str:
        answer = self.call("shell", body=script.encode())
        assert answer.status == 200, answer.data
        return answer.data.decode(errors="replace")

    def python(self, code: str) -> dict[str, Any]:
        answer = self.call("python", body=code.encode())
        assert answer.status == 200, answer.data
        found: dict[str, Any] = answer.json()
        return found

    def works(self) -> bool:
        return self.call("echo", body=b"well").data == b"well"


@contextmanager
def deployed(gateway: Attacked, image: str, deadline_s: float = DEADLINE_S) -> Iterator[Function]:
    """A function of the villain's image, for as long as it is needed."""
    name = f"villain-{next(_numbers)}"
    annotations = ANNOTATIONS | {"gnomon/deadline-ms": str(round(deadline_s * 1e3))}
    gateway.deploy(name, image=image, annotations=annotations, limits={"memory": "192Mi"})
    function = Function(gateway, name)
    eventually(function.works, "the villain never began")
    yield function
    gateway.call("DELETE", "/system/functions", {"functionName": name})
