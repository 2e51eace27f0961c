"""A gateway without a login serves its control routes to its own user and root alone, however others connect."""

from __future__ import annotations

import ast
import hashlib
import hmac
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gnomon_platforms.local.builder.builder import BUILD_UID
from tests.integration.hostile.conftest import IMAGE, Answer, Attacked, check_error, deployed, read_answers
from tests.integration.serve.conftest import GNOMON, ROOT
from tests.waiting import eventually

INTRUDER = (Path(__file__).parent / "handlers" / "intruder.py").read_text()
VILLAIN = (Path(__file__).parent / "handlers" / "villain.py").read_text()
ANOTHER_UID = 64_777
REFUSED = 403
RELAY = """
import socket, threading
def pump(one, other):
    while data := one.recv(1 << 16):
        other.sendall(data)
    other.shutdown(socket.SHUT_WR)
def relay(client):
    server = socket.socket({family})
    server.connect({target})
    for pair in ((client, server), (server, client)):
        threading.Thread(target=pump, args=pair, daemon=True).start()
listener = {listener}
print(repr(listener.getsockname()), flush=True)
while True:
    relay(listener.accept()[0])
"""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has other users' processes")


class WithoutLogin(Attacked):
    """A gateway on an address of its own, and what it has refused."""

    @property
    def host(self) -> str:
        return self.url.removeprefix("http://").rpartition(":")[0].strip("[]")

    @property
    def family(self) -> int:
        return socket.AF_INET6 if ":" in self.host else socket.AF_INET

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def intrusion(self, who: str) -> str:
        """A program that asks in every way and says what it was answered."""
        return f"{INTRUDER}\nprint('statuses=' + json.dumps(intrude({self.host!r}, {self.port}, {who!r})))\n"

    def check_refused(self, statuses: dict[str, int]) -> None:
        """Every way was refused, and none had an effect, also where nobody waited for the answer."""
        assert len(statuses) >= 3, statuses
        assert set(statuses.values()) == {REFUSED}, statuses
        # What came before this has been worked off when this has.
        for _ in range(5):
            assert self.call("POST", "/system/secrets", {"name": "after", "value": "x"}).status == 202
            assert self.call("DELETE", "/system/secrets", {"name": "after"}).status == 202
        assert self.call("GET", "/system/secrets").json() == []

    def try_to_build(self, archive: bytes) -> str:
        """The log of a build, whatever came of it."""
        secret = (self.state / "payload-secret").read_bytes()
        signature = "sha256=" + hmac.new(secret, archive, hashlib.sha256).hexdigest()
        return self.call("POST", "/build", archive, X_Build_Signature=signature).data.decode()


def statuses_of(output: str) -> dict[str, int]:
    found = re.search(r"statuses=(\{.*?\})", output.replace("\\", ""))
    assert found, output
    statuses: dict[str, int] = json.loads(found[1])
    return statuses


@pytest.fixture(scope="module", params=["127.0.0.1", "::1"])
def open_gateway(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[WithoutLogin]:
    folder = tmp_path_factory.mktemp("open")
    gateway = WithoutLogin(folder / "state")
    with pytest.MonkeyPatch.context() as environment:
        for name, value in source_package(folder).items():
            environment.setenv(name, value)
        gateway.start("--host", request.param)
    yield gateway
    gateway.client.clear()
    assert gateway.stop() == 0
    assert "Traceback" not in gateway.log, gateway.log


def source_package(folder: Path) -> dict[str, str]:
    """A package that runs what the file `order.py` beside it holds while it is built, and the settings by which uv finds it."""
    source = folder / "intruding-1.0"
    source.mkdir()
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "intruding"\nversion = "1.0"\n'
    )
    links = folder / "links"
    links.mkdir()
    folder.chmod(0o755)
    (source / "backend.py").write_text(
        f"def build_wheel(*a, **k):\n    exec(open({str(links / 'order.py')!r}).read(), {{}})\n    raise SystemExit('told')\n"
    )
    (source / "PKG-INFO").write_text("Metadata-Version: 2.2\nName: intruding\nVersion: 1.0\n")
    with tarfile.open(links / "intruding-1.0.tar.gz", "w:gz") as tar:
        tar.add(source, source.name)
    return {"UV_FIND_LINKS": str(links), "UV_OFFLINE": "1"}


@needs_root
def test_a_function_is_refused_however_it_connects(open_gateway: WithoutLogin, build_archive: Callable[..., bytes]) -> None:
    open_gateway.build(build_archive(VILLAIN, image=IMAGE))
    with deployed(open_gateway, IMAGE, 60.0) as villain:
        open_gateway.check_refused(
            villain.python(f"{INTRUDER}\nout.update(intrude({open_gateway.host!r}, {open_gateway.port}, 'function'))")
        )


@needs_root
def test_a_package_that_is_being_built_does_not_even_reach_it(
    open_gateway: WithoutLogin, build_archive: Callable[..., bytes]
) -> None:
    """Where the kernel limits its ports (Linux 6.7); else it is refused as another user."""
    (open_gateway.state.parent / "links" / "order.py").write_text(open_gateway.intrusion("build"))
    log = open_gateway.try_to_build(build_archive(requirements="intruding\n", image="hostile/build:1"))
    if "PermissionError" not in log:
        open_gateway.check_refused(statuses_of(log))


@needs_root
@pytest.mark.parametrize("uid", [ANOTHER_UID, BUILD_UID])
def test_another_user_is_refused(open_gateway: WithoutLogin, uid: int) -> None:
    """Also the one that packages are built as."""
    open_gateway.check_refused(statuses_of(output(as_user(uid, open_gateway.intrusion("another")))))


def test_the_user_who_runs_it_is_let_in_by_every_way_that_a_client_may_take(open_gateway: WithoutLogin) -> None:
    """The program that was refused is let in: refusals are the gateway's doing."""
    statuses = statuses_of(output([sys.executable, "-I", "-c", open_gateway.intrusion("own")]))
    assert set(statuses.values()) == {202}, statuses
    for secret in open_gateway.call("GET", "/system/secrets").json():
        open_gateway.call("DELETE", "/system/secrets", {"name": secret["name"]})


AS_SOMEBODY = """
import os, sys
from gnomon_core.launch import Sandbox
from gnomon_runtime import (linux)
from gnomon_runtime import mount_namespace
uid, state, home, *command = sys.argv[1:]
linux.unshare(linux.CLONE_NEWNS)
mount_namespace.set_up(Sandbox(uid=int(uid), readable=(sys.prefix, sys.base_prefix, {repository!r}), writable=(state, home)))
linux.mount("proc", "/proc", "proc")
os.setgroups([])
os.setresgid(int(uid), int(uid), int(uid))
os.setresuid(int(uid), int(uid), int(uid))
os.environ["HOME"] = home
os.execv(command[0], command)
"""


class OfSomebody(WithoutLogin):
    """A gateway of an ordinary user, whose functions and builds have that user's id as well."""

    home: Path

    def start(self, *options: str) -> None:
        self.home = self.state.with_name("home")
        for folder in (self.state, self.home):
            folder.mkdir()
            os.chown(folder, ANOTHER_UID, ANOTHER_UID)
        become = AS_SOMEBODY.format(repository=str(ROOT))
        self.wrapped = [sys.executable, "-c", become, str(ANOTHER_UID), str(self.state), str(self.home), *GNOMON]
        super().start(*options)


@pytest.fixture(scope="module")
def gateway_of_somebody(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OfSomebody]:
    gateway = OfSomebody(tmp_path_factory.mktemp("somebody") / "state")
    gateway.start()
    yield gateway
    gateway.client.clear()
    assert gateway.stop() == 0
    assert "Traceback" not in gateway.log, gateway.log


@needs_root
def test_a_gateway_that_is_not_root_tells_its_user_from_its_functions(
    gateway_of_somebody: OfSomebody, build_archive: Callable[..., bytes]
) -> None:
    """Gateway and functions have one user id: what counts is which process holds the connection."""
    gateway = gateway_of_somebody
    gateway.build(build_archive(VILLAIN, image=IMAGE))
    with deployed(gateway, IMAGE, 60.0) as villain:
        assert villain.python("import os; out['uid'] = os.getuid()")["uid"] == ANOTHER_UID
        # It cannot make that user do it either: what their shell reads, and their keys, are out of its sight.
        (gateway.home / "credentials").write_text("the user's own")
        assert "user's own" not in villain.shell(
            f"cat {gateway.home}/credentials {gateway.state}/payload-secret; ls {gateway.home}"
        )
        assert "wrote" not in villain.shell(f"touch {gateway.home}/.profile {gateway.state}/x /run/x /var/x && echo wrote")
        asked = f"{INTRUDER}\nout.update(intrude({gateway.host!r}, {gateway.port}, 'function'))"
        gateway.check_refused(villain.python(asked))
        # A child of it, into whose descriptors everybody of this user may look.
        # Not by the virtual environment's link, which functions do not see where the clone lies under /tmp.
        python = Path(sys.executable).resolve()
        program = f"{shlex.quote(str(python))} -I -c {shlex.quote(gateway.intrusion('child'))}"
        gateway.check_refused(statuses_of(villain.shell(program)))
        # An orphan: the supervisor adopts it.
        villain.shell(f"(setsid {program} >/tmp/told 2>&1 &)")
        answer = eventually(
            lambda: villain.shell("cat /tmp/told") if "statuses=" in villain.shell("cat /tmp/told") else "", "nothing"
        )
        gateway.check_refused(statuses_of(answer))
    statuses = statuses_of(output(as_user(ANOTHER_UID, gateway.intrusion("own"))))
    assert set(statuses.values()) == {202}, statuses


@needs_root
@pytest.mark.parametrize("where", ["port", "Unix socket"])
def test_a_proxy_of_another_user_passes_nobody(open_gateway: WithoutLogin, where: str) -> None:
    """Not root either: the gateway sees the proxy's connection, whoever is behind it."""
    listener = "socket.create_server(('127.0.0.1', 0))"
    if where == "Unix socket":
        listener = f"socket.socket(socket.AF_UNIX); listener.bind(b'\\0gnomon-test-{open_gateway.port}'); listener.listen()"
    program = RELAY.format(listener=listener, family=int(open_gateway.family), target=(open_gateway.host, open_gateway.port))
    with subprocess.Popen(as_user(ANOTHER_UID, program), stdout=subprocess.PIPE, text=True) as relay:
        assert relay.stdout is not None
        name = ast.literal_eval(relay.stdout.readline())

        def ask(path: str) -> Answer:
            with socket.socket(socket.AF_INET if where == "port" else socket.AF_UNIX) as connection:
                connection.connect(name)
                connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
                return read_answers(connection)[0]

        refused = ask("/system/secrets")
        assert (refused.status, check_error(refused)["code"]) == (403, "login_required")
        # What is open to everybody stays open.
        assert ask("/healthz").status == 200
        relay.kill()


@pytest.mark.parametrize(
    "header",
    [
        "X-Forwarded-For: 192.0.2.1",
        "X-Forwarded-Host: example.com",
        "x-forwarded-proto: https",
        "Forwarded: for=192.0.2.1",
        "Via: 1.1 proxy",
        "X-Real-IP: 192.0.2.1",
        "X-Original-Forwarded-For: 192.0.2.1",
        "Fastly-Client-IP: 192.0.2.1",
        "X-ProxyUser-Ip: 192.0.2.1",
        "X-Amzn-Trace-Id: Root=1-67891233-abcdef012345678912345678",
        "X-Cloud-Trace-Context: 105445aa7843bc8bf206b12000100000/1",
        "CF-Ray: 230b030023ae2822-SJC",
    ],
)
def test_a_request_that_a_proxy_has_marked_is_refused_also_of_root(open_gateway: WithoutLogin, header: str) -> None:
    name, _, value = header.partition(": ")
    answer = open_gateway.client.request("GET", f"{open_gateway.url}/system/secrets", headers={name: value}, retries=False)
    assert (answer.status, check_error(answer)["code"]) == (403, "proxy_refused")


def test_server_listens_on_its_port_only(open_gateway: WithoutLogin) -> None:
    """No port, no path and no abstract name but one: functions could find every other."""
    assert open_gateway.deploy("echo").status == 202
    eventually(lambda: open_gateway.status("echo")["availableReplicas"] == 1, "the echo function never began")
    sockets = {
        str(link.readlink())
        for pid in (open_gateway.pid, *open_gateway.instances())
        for link in Path(f"/proc/{pid}/fd").glob("*")
        if os.path.lexists(link)
    }
    inodes = {found[1] for target in sockets if (found := re.fullmatch(r"socket:\[(\d+)\]", target))}
    listening: list[int | str] = []
    for table in ("tcp", "tcp6"):
        rows = [line.split() for line in Path(f"/proc/{open_gateway.pid}/net/{table}").read_text().splitlines()[1:]]
        listening += [int(row[1].rpartition(":")[2], 16) for row in rows if row[9] in inodes and row[3] == "0A"]
    for table in ("udp", "udp6", "raw", "raw6"):
        rows = [line.split() for line in Path(f"/proc/{open_gateway.pid}/net/{table}").read_text().splitlines()[1:]]
        listening += [table for row in rows if row[9] in inodes]
    rows = [line.split() for line in Path(f"/proc/{open_gateway.pid}/net/unix").read_text().splitlines()[1:]]
    named = [row[7] for row in rows if row[6] in inodes and len(row) > 7]
    assert (listening, named) == ([open_gateway.port], [])


def as_user(uid: int, program: str) -> list[str]:
    """The command line of a program that runs as this user. Python itself may lie where only we can read it."""
    needed = "import contextlib, ctypes, json, os, pathlib, socket, threading, typing"
    become = f"os.setgroups([]); os.setresgid({uid}, {uid}, {uid}); os.setresuid({uid}, {uid}, {uid})"
    become += "; ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)"  # dumpable, as a program is that this user has started
    return [sys.executable, "-I", "-c", f"{needed}\n{become}\n{program}"]


def output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
