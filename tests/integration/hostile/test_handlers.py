"""Functions that harm themselves and try to harm others: their own requests get the right code in time, nobody else notices."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import urllib3

from tests.integration.hostile.conftest import MARKER, Attacked, check_error, read_answers
from tests.waiting import eventually

IMAGE = "hostile/villain:1"
DEADLINE_S, HASTE_S = 2.0, 0.5
ANNOTATIONS = {"gnomon/deadline-ms": "2000", "gnomon/autoscaler": "fixed"}
MIB = 1 << 20
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give functions users of their own")
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


@pytest.fixture(scope="session")
def image(gateway: Attacked, build_archive: Callable[..., bytes]) -> str:
    code = (Path(__file__).parent / "handlers" / "villain.py").read_text()
    gateway.build(build_archive(code, image=IMAGE))
    return IMAGE


@pytest.fixture(scope="session")
def bystander(gateway: Attacked, image: str) -> Function:
    """Another function with a secret, which must not notice anything."""
    gateway.call("POST", "/system/secrets", {"name": "theirs", "value": "a-secret-of-theirs"})
    answer = gateway.deploy("bystander", image=image, secrets=["theirs"], annotations=ANNOTATIONS)
    assert answer.status == 202, answer.data
    function = Function(gateway, "bystander")
    eventually(function.works, "the bystander never began")
    return function


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


@pytest.fixture
def villain(gateway: Attacked, bystander: Function, image: str) -> Iterator[Function]:
    """A function of its own for each deed: one that crashes again and again is started ever more slowly."""
    del bystander
    with deployed(gateway, image) as function:
        yield function


@pytest.fixture
def dawdler(gateway: Attacked, bystander: Function, image: str) -> Iterator[Function]:
    """One that makes its callers wait, who have less patience, so that the tests need not have it."""
    del bystander
    with deployed(gateway, image, HASTE_S) as function:
        yield function


@pytest.fixture(scope="session")
def survivor(gateway: Attacked, bystander: Function, image: str) -> Iterator[Function]:
    """One for all the deeds that no instance ends by."""
    del bystander
    with deployed(gateway, image) as function:
        yield function


LOST, FAILED, WRONG, LATE = (502, "instance_lost"), (500, "handler_failed"), (500, "wrong_answer"), (504, "deadline_exceeded")
DEEDS: list[tuple[str, object, tuple[int, str]]] = [
    ("exit", 3, LOST),
    ("exit", 0, LOST),
    ("segfault", "", LOST),
    ("abort", "", LOST),
    ("kill itself", "", LOST),
    ("close everything", "", LOST),
    ("close the channel", "", LOST),
    ("scribble", 1, LOST),
    ("scribble", 10_000, LOST),
    ("promise much", "", LOST),
    ("promise something", "", LATE),
    ("sleep", 30, LATE),
    ("freeze", "", LATE),
    ("raise", "", FAILED),
    ("raise SystemExit", "", FAILED),
    ("answer a surrogate", "", FAILED),
    ("answer an object", "", WRONG),
    ("status", 99, WRONG),
    ("status", 101, WRONG),
    ("status", 600, WRONG),
    ("stream", "raise", FAILED),
    ("stream", "exit", LOST),
    ("stream", "object", WRONG),
]


@pytest.mark.parametrize(
    ("deed", "argument", "expected"), DEEDS, ids=[f"{deed} {argument}".strip() for deed, argument, _ in DEEDS]
)
def test_a_deed_costs_its_own_request_and_nothing_else(
    request: pytest.FixtureRequest, bystander: Function, deed: str, argument: object, expected: tuple[int, str]
) -> None:
    villain: Function = request.getfixturevalue({LOST: "villain", LATE: "dawdler"}.get(expected, "survivor"))
    answer = villain.call(deed, argument)
    assert bystander.works()
    error = json.loads(answer.data)["error"]
    assert (answer.status, error["code"]) == expected
    assert "secret" not in answer.data.decode()
    if expected in (LOST, LATE):
        check_error(answer)
    if expected != LATE:
        # One that hangs is given time; the others are there again at once.
        eventually(villain.works, "it was not replaced")


GREED: list[tuple[str, object, tuple[int, ...]]] = [
    ("bomb", "", (200, 502, 504)),
    ("hoard", 400, (500, 502)),
    ("answer at length", 50, (200, 502)),
    ("answer at length", 400, (500, 502)),
    ("talk", 100, (200,)),
    ("talk in one line", 50, (200, 502)),
    ("leave later", "", (200,)),
]


@pytest.mark.parametrize(
    ("deed", "argument", "statuses"), GREED, ids=[f"{deed} {argument}".strip() for deed, argument, _ in GREED]
)
def test_what_it_takes_too_much_of_it_takes_from_itself(
    villain: Function, bystander: Function, deed: str, argument: object, statuses: tuple[int, ...]
) -> None:
    gateway = villain.gateway
    before_bytes = gateway.resident_bytes()
    answer = villain.call(deed, argument)
    assert answer.status in statuses, answer.data[:500]
    assert bystander.works()
    if (deed, answer.status) == ("answer at length", 200):
        assert len(answer.data) == 50 * MIB
    del answer
    assert gateway.resident_bytes() - before_bytes < 192 * MIB
    eventually(villain.works, "it was not replaced")


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Name": "a\r\nX-Smuggled: b"},
        {"X-Name\r\nX-Smuggled": "b"},
        {"X-Name": "a\nHTTP/1.1 200 OK"},
        {"": "a"},
        {"X Name": "a"},
        {"X-Name:": "a"},
        {"X-Name": "\0"},
        {"X-Name": "\u20ac"},
    ],
    ids=repr,
)
def test_a_header_that_would_be_two_is_refused(bystander: Function, headers: dict[str, str]) -> None:
    answer = bystander.call("headers", body=json.dumps(headers).encode())
    assert answer.status in (500, 502)
    assert "X-Smuggled" not in answer.headers


def test_a_function_cannot_say_what_is_ours_to_say(bystander: Function) -> None:
    forged = {
        "X-OpenFaaS-Internal": "gnomon",
        "X-Call-Id": "forged",
        "X-Start-Time": "12345",
        "X-Duration-Seconds": "54321",
        "Content-Length": "99",
        "Transfer-Encoding": "chunked",
        "Connection": "close",
        "Date": "yesterday",
    }
    answer = bystander.call("headers", body=json.dumps(forged).encode())
    assert (answer.status, answer.data) == (200, b"x")
    assert "X-OpenFaaS-Internal" not in answer.headers
    assert not set(forged.values()) & set(answer.headers.values())
    for name in ("X-Call-Id", "X-Start-Time", "X-Duration-Seconds", "Content-Length", "Date"):
        assert len(answer.headers.getlist(name)) == 1


def test_a_stream_that_breaks_off_is_not_taken_for_whole(villain: Function, bystander: Function) -> None:
    for argument in ("raise", "exit"):
        with pytest.raises(urllib3.exceptions.ProtocolError):
            villain.call("stream", argument, Accept="text/event-stream")
        assert bystander.works()
        eventually(villain.works, "it was not replaced")


def test_a_stream_that_nobody_reads_does_not_pile_up(villain: Function, bystander: Function) -> None:
    gateway = villain.gateway
    before_bytes = gateway.resident_bytes()
    with gateway.connect() as connection:
        head = (
            f"POST /function/{villain.name}/stream HTTP/1.1\r\nHost: a\r\nAccept: text/event-stream\r\nContent-Length: 0\r\n\r\n"
        )
        connection.sendall(head.encode())
        eventually(villain.works, "it goes on for somebody who does not listen", 10)
        assert gateway.resident_bytes() - before_bytes < 64 * MIB
        assert bystander.works()
        with pytest.raises((OSError, AssertionError, ValueError)):
            read_answers(connection)


@needs_root
def test_it_cannot_read_what_is_ours(survivor: Function) -> None:
    gateway = survivor.gateway
    seen = survivor.shell(
        f"ls -laR {gateway.state} {gateway.state}/platform; cat {gateway.state}/functions.db {gateway.state}/payload-secret;"
        f"cat /proc/{gateway.pid}/environ /proc/{gateway.pid}/cmdline; ls /proc/{gateway.pid}/fd; env; set"
    )
    assert (gateway.state / "payload-secret").read_text() not in seen
    for ours in ("SQLite", "gnomon_cli", "users.json", MARKER):
        assert ours not in seen


@needs_root
def test_it_cannot_read_or_ask_for_the_secrets_of_others(villain: Function, bystander: Function) -> None:
    gateway = villain.gateway
    assert bystander.shell("cat /var/openfaas/secrets/theirs") == "a-secret-of-theirs"
    pid = bystander.python("import os; out['pid'] = os.getpid()")["pid"]
    seen = villain.shell(
        f"cat /var/openfaas/secrets/*; cat /proc/{pid}/root/var/openfaas/secrets/theirs /proc/{pid}/environ;"
        "unshare -rm sh -c 'umount -l /var/openfaas/secrets; cat /var/openfaas/secrets/*'; ls /proc"
    )
    assert "a-secret-of-theirs" not in seen
    assert str(pid) not in seen.split()
    request = '{"service":"spy","image":"functions/alpine","envProcess":"cat /var/openfaas/secrets/theirs","secrets":["theirs"]}'
    for forged in ("", "-H 'X-Forwarded-For: 192.0.2.1'"):
        asked = villain.shell(f"curl -s -m 5 {forged} -d '{request}' {gateway.url}/system/functions")
        assert json.loads(asked)["error"]["code"] == "function_refused"
    assert gateway.call("GET", "/system/function/spy").status == 404
    # What is open to everybody is open to functions: they may call each other.
    assert villain.shell(f"curl -s -m 5 -d hello {gateway.url}/function/bystander/echo") == "hello"


@needs_root
def test_it_cannot_touch_the_processes_of_others(villain: Function, bystander: Function) -> None:
    gateway = villain.gateway
    pid = bystander.python("import os; out['pid'] = os.getpid()")["pid"]
    targets = [gateway.pid, *gateway.instances()]
    tried = villain.python(
        "import ctypes, os, signal\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        f"for pid in {targets}:\n"
        "    if pid == os.getpid(): continue\n"
        "    try: os.kill(pid, signal.SIGKILL); out[str(pid)] = 'killed'\n"
        "    except OSError: pass\n"
        "    if libc.ptrace(16, pid, 0, 0) == 0: out[str(pid)] = 'traced'\n"
        "    try: open(f'/proc/{pid}/mem', 'rb'); out[str(pid)] = 'opened'\n"
        "    except OSError: pass\n"
    )
    own = {name for name in tried if tried[name] == "killed"}
    assert not own & {str(gateway.pid), str(pid)}
    assert all(deed == "killed" for deed in tried.values())
    # What it can kill is its own zygote, at most: a new one is there when it is needed.
    assert len(own) <= 2
    assert bystander.python("import os; out['pid'] = os.getpid()")["pid"] == pid
    villain.call("shell", body=b"kill -9 -1")
    assert bystander.python("import os; out['pid'] = os.getpid()")["pid"] == pid
    eventually(villain.works, "it was not replaced")


@needs_root
def test_it_can_write_to_its_own_tmp_only_and_bind_no_low_port(survivor: Function) -> None:
    ports = survivor.python(
        "import socket\n"
        "for port in (0, 80, 443):\n"
        "    with socket.socket() as s:\n"
        "        try: s.bind(('127.0.0.1', port)); out[str(port)] = True\n"
        "        except OSError: out[str(port)] = False\n"
    )
    assert ports == {"0": True, "80": False, "443": False}
    seen = survivor.shell(
        "for d in / /etc /usr /var /opt /home /root /bin; do touch $d/x 2>/dev/null && echo wrote $d; done; id -u; umask"
    )
    assert "wrote" not in seen
    assert int(seen.split()[0]) >= 200_000
