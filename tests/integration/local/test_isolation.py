"""A function may see and use its own secrets, its own cores and memory, and nothing of ours."""

import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.functions import read_deployment
from gnomon_core.interfaces import InstanceRequest
from gnomon_core.launch import Limits, Sandbox
from tests.platform_testing import answers, request_frame, send

Running = Any
"""The class of that name in conftest.py, which pytest does not let us import."""
SECRETS = "/var/openfaas/secrets"

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give functions users of their own")


def is_on_the_host(secret: str) -> bool:
    return Path(SECRETS, secret).exists()


def is_written(folder: str) -> bool:
    return Path(folder, "gnomon-probe").exists()


def resolvers() -> str:
    return Path("/etc/resolv.conf").read_text()


async def test_secrets_are_where_openfaas_puts_them(running: Running) -> None:
    instance = await running.begin("reader", secrets={"api-key": b"sesam", "raw": b"\x00\x01"})
    assert await running.ask(instance, f"cat {SECRETS}/api-key") == "sesam"
    assert await running.ask(instance, f"od -An -tx1 {SECRETS}/raw") == " 00 01\n"
    listing = await running.ask(instance, f"ls -ln {SECRETS}")
    assert "api-key" in listing
    assert listing.count("-r--------") == 2


async def test_each_function_sees_its_own_secrets_only(running: Running) -> None:
    first_instance = await running.begin("one", secrets={"token": b"of one"})
    two = await running.begin("two", secrets={"token": b"of two"})
    none = await running.begin("none")
    assert await running.ask(first_instance, f"cat {SECRETS}/token") == "of one"
    assert await running.ask(two, f"cat {SECRETS}/token") == "of two"
    assert "No such file" in await running.ask(none, f"cat {SECRETS}/token")
    inside = await running.ask(first_instance, "echo $PPID")
    assert "of one" not in await running.ask(two, f"cat /proc/{inside.strip()}/root{SECRETS}/token")
    assert not is_on_the_host("token")


async def test_a_secret_cannot_be_changed_by_its_function(running: Running) -> None:
    instance = await running.begin("writer", secrets={"s": b"x"})
    assert await running.ask(instance, f"chmod 600 {SECRETS}/s; echo no > {SECRETS}/s; cat {SECRETS}/s") != "no"
    assert (await running.ask(instance, f"cat {SECRETS}/s")) == "x"


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".."])
async def test_a_secret_with_a_name_that_leaves_the_folder_starts_nothing(running: Running, name: str) -> None:
    spec = read_deployment({"service": "f", "image": "functions/alpine", "envProcess": "cat"})
    instance = await running.platform.create(InstanceRequest(spec, 1, 1, None, {name: b"x"}))
    assert "cannot be the name" in await running.events.reason(instance.id)


async def test_the_state_directory_cannot_be_read(running: Running) -> None:
    (running.state / "gnomon.db").write_text("everybody's secrets")
    running.state.chmod(0o755)
    instance = await running.begin("curious")
    assert "everybody" not in await running.ask(instance, f"cat {running.state}/gnomon.db; ls -la {running.state}")


async def test_our_environment_cannot_be_read_by_any_way(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    instance = await running.begin("curious", envVars={"mine": "1"})
    owner, supervisor = os.getpid(), running.platform._supervisor.pid
    seen = await running.ask(instance, f"env; cat /proc/{owner}/environ /proc/{supervisor}/environ /proc/$PPID/environ")
    assert "mine=1" in seen
    assert "PYTEST_CURRENT_TEST" not in seen
    names = {line.split("=")[0] for line in seen.splitlines() if "=" in line and not line.startswith("Http_")}
    assert names <= {"PATH", "HOME", "HOSTNAME", "fprocess", "mine", "PWD", "OLDPWD", "SHLVL", "_"}


async def test_tmp_is_private(running: Running, tmp_path: Path) -> None:
    first, second = await running.begin("one"), await running.begin("two")
    assert await running.ask(first, "echo mine > /tmp/f; cat /tmp/f") == "mine\n"
    assert "No such file" in await running.ask(second, "cat /tmp/f")
    # In a clone below /tmp the way to the runtime is there, and nothing beside it.
    way = {Path(path).parts[2] for path in (sys.prefix, sys.base_prefix, *sys.path) if path.startswith("/tmp/")}
    assert set((await running.ask(second, "ls -A /tmp")).split()) <= way


async def test_nothing_but_its_own_scratch_can_be_written_to(running: Running) -> None:
    """Neither what everybody may write to on the machine, such as /run/lock, nor what its user may."""
    instance = await running.begin("writer")
    found = await running.ask(instance, "find / -maxdepth 4 -type d -writable -not -path '/proc*' 2>/dev/null; true")
    assert set(found.split()) <= {"/tmp", "/var/tmp", "/dev/shm"}
    for folder in ("/run/lock", "/var/lock", "/run/user", "/dev/mqueue", "/var/crash"):
        tried = await running.ask(instance, f"touch {folder}/gnomon-probe 2>/dev/null && echo wrote; true")
        assert (tried, is_written(folder)) == ("", False)


async def test_services_of_the_machine_are_out_of_reach(running: Running) -> None:
    instance = await running.begin("visitor")
    kept = "-e resolv -e systemd -e NetworkManager -e opengl -e current-system"
    assert await running.ask(instance, f"ls -A /run | grep -v {kept}; true") == ""
    assert await running.ask(instance, "cat /etc/resolv.conf") == resolvers()


PROBE = """
import ctypes, errno, json, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def tried(call, *arguments):
    try:
        result = call(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
    return errno.errorcode[ctypes.get_errno()] if result == -1 else "ok"
numbers = {"x86_64": (56, 272, 308, 250), "aarch64": (220, 97, 268, 219)}[os.uname().machine]
clone, unshare, setns, keyctl = numbers
found = {
    "unshare": tried(libc.syscall, unshare, 0x10000000),
    "unshare with more": tried(libc.syscall, unshare, 0x10020000),
    "clone": tried(libc.syscall, clone, 0x10000000 | 17, 0, 0, 0, 0),
    "clone3": tried(libc.syscall, 435, 0, 0),
    "setns": tried(libc.syscall, setns, os.open("/proc/self/ns/user", os.O_RDONLY), 0),
    "keyctl": tried(libc.syscall, keyctl, 0, -3, 0),
    "io_uring": tried(libc.syscall, 425, 1, 0),
    "vsock": tried(socket.socket, 40, socket.SOCK_STREAM),
    "ciphers": tried(socket.socket, 38, socket.SOCK_SEQPACKET),
    "mptcp": tried(socket.socket, socket.AF_INET, socket.SOCK_STREAM, 262),
    "ipv4": tried(socket.socket), "ipv6": tried(socket.socket, socket.AF_INET6), "unix": tried(socket.socket, socket.AF_UNIX),
    "abstract": tried(socket.socket(socket.AF_UNIX).connect, "\\0" + sys.argv[1]),
    "signal": tried(os.kill, int(sys.argv[2]), 0),
}
print(json.dumps(found))
"""


async def test_system_calls_refused_to_a_function(running: Running) -> None:
    instance = await running.begin("prober", limits={"memory": "256Mi"})
    with socket.socket(socket.AF_UNIX) as outside:
        name = f"gnomon-test-{os.getpid()}"
        outside.bind("\0" + name)
        outside.listen()
        command = f"{shlex.quote(sys.executable)} -I -c {shlex.quote(PROBE)} {name} {os.getpid()}"
        found = json.loads(await running.ask(instance, command))
    refused = {name: answer for name, answer in found.items() if answer != "ok"}
    expected = {
        "unshare": "EPERM", "unshare with more": "EPERM", "clone": "EPERM", "clone3": "ENOSYS", "setns": "EPERM",
        "keyctl": "EPERM", "io_uring": "ENOSYS", "vsock": "EAFNOSUPPORT", "ciphers": "EAFNOSUPPORT", "mptcp": "EPROTONOSUPPORT",
    }  # fmt: skip
    assert {name: refused.pop(name, None) for name in expected} == expected
    # By Landlock, from Linux 6.12 on; and another user's process takes no signals anyway.
    assert refused.items() <= {"abstract": "EPERM", "signal": "EPERM"}.items()
    release = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])
    assert release < (6, 12) or set(refused) == {"abstract", "signal"}
    for tool in ("unshare -U true", "unshare -rm true"):
        assert "not permitted" in await running.ask(instance, f"{tool} 2>&1")


async def test_a_read_only_root_is_one(running: Running) -> None:
    instance = await running.begin("fixed", readOnlyRootFilesystem=True)
    assert "Read-only" in await running.ask(instance, "touch /var/x /etc/x 2>&1")
    assert await running.ask(instance, "echo ok > /tmp/x; cat /tmp/x") == "ok\n"


async def test_no_privilege_is_left(running: Running) -> None:
    instance = await running.begin("plain")
    status = await running.ask(instance, "cat /proc/self/status")
    assert "CapEff:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status


async def test_an_instance_runs_on_as_many_cpus_as_it_has_cores(running: Running) -> None:
    instance = await running.begin("pinned")
    assert await running.ask(instance, "nproc") == "1\n"


async def test_passing_a_memory_limit_ends_only_the_one_that_did(running: Running) -> None:
    greedy = await running.begin("greedy", limits={"memory": "64Mi"})
    modest = await running.begin("modest", limits={"memory": "64Mi"})
    frame = await send(running.channel(greedy), request_frame(b"tail /dev/zero"))
    if frame is not None:
        assert [status for status, _ in answers(frame)] == [500]
    assert await running.ask(modest, "echo fine") == "fine\n"


async def test_a_small_limit_leaves_room_for_a_small_function(running: Running) -> None:
    instance = await running.begin("small", limits={"memory": "5Mi"})
    assert [await running.ask(instance, "echo fine") for _ in range(3)] == ["fine\n"] * 3


@pytest.mark.root
@needs_root
async def test_functions_are_different_users_and_nobody_important(running: Running) -> None:
    first, second = await running.begin("one"), await running.begin("two")
    ids = [await running.ask(instance, "id -u; id -g; id -G") for instance in (first, second)]
    assert ids[0] != ids[1]
    assert all(len(set(text.split())) == 1 and int(text.split()[0]) >= 200_000 for text in ids)
    again = await running.begin("one")
    assert await running.ask(again, "id -u; id -g; id -G") == ids[0]


@pytest.mark.root
@needs_root
async def test_function_cannot_see_or_kill_another(running: Running) -> None:
    first, second = await running.begin("one"), await running.begin("two")
    pid = (await running.ask(first, "echo $PPID")).strip()
    assert pid not in (await running.ask(second, "ls /proc")).split()
    assert await running.ask(second, f"kill -9 {pid} && echo done") != "done\n"
    assert await running.ask(first, "echo still here") == "still here\n"


@dataclass
class Handler:
    folder: Path
    python: Path
    preload: tuple[str, ...] = ()
    content_id: str = "c1"


HANDLER = """
import os, pathlib, sys
def handle(event, context):
    try:
        return str(eval(event.body))
    except Exception as error:
        return repr(error)
"""


def build(state: Path) -> Handler:
    folder, environment = state / "contents", state / "environment"
    folder.mkdir()
    (folder / "handler.py").write_text(HANDLER)
    tool = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    subprocess.run([tool, "venv", "--quiet", "--python", os.path.realpath(sys.executable), str(environment)], check=True)
    [site] = environment.glob("lib/python*/site-packages")
    # Code that a package's .pth file runs as soon as Python starts.
    (site / "spy.pth").write_text("import sys, os; sys.started_as = os.getuid()\n")
    return Handler(folder, environment / "bin" / "python")


async def test_a_handler_runs_in_its_own_environment_with_nothing_of_ours(running: Running) -> None:
    handler = running.images.built["mine"] = build(running.state)
    environment = handler.python.parent.parent
    spec = read_deployment({"service": "handler", "image": "mine", "secrets": ["s"]})
    instance = await running.begin_spec(spec, {"s": b"sesam"})
    assert await running.ask(instance, "pathlib.Path('/var/openfaas/secrets/s').read_text()") == "sesam"
    assert await running.ask(instance, "__import__('starlette')") == "ModuleNotFoundError(\"No module named 'starlette'\")"
    assert await running.ask(instance, "sys.prefix") == str(environment)
    assert await running.ask(instance, "len(os.sched_getaffinity(0))") == "1"
    sibling = await running.begin_spec(spec, {"s": b"sesam"})
    rng = "__import__('random').random()"
    assert await running.ask(instance, rng) != await running.ask(sibling, rng)
    (running.state / "users-of-others").write_text("x")
    assert "Error" in await running.ask(instance, f"pathlib.Path('{running.state}/users-of-others').read_text()")
    if os.geteuid() == 0:
        assert int(await running.ask(instance, "sys.started_as")) >= 200_000


@pytest.mark.root
@needs_root
def test_a_command_in_a_sandbox_ends_in_time_with_everything_it_started(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "out").mkdir()
    os.chown(tmp_path / "out", 212_345, 212_345)
    sandbox = Sandbox(uid=212_345, writable=(str(tmp_path / "out"),), hidden=(str(tmp_path),), limits=Limits(wall_s=0.5))
    script = f"id -u > {tmp_path}/out/uid; setsid sleep 1000 & echo $! > {tmp_path}/out/pid; sleep 1000"
    command = [sys.executable, "-I", "-m", "gnomon_runtime.sandbox", sandbox.to_json(), "--", "sh", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 124
    assert "time it may take" in done.stderr
    assert (tmp_path / "out/uid").read_text() == "212345\n"
    assert not Path("/proc", (tmp_path / "out/pid").read_text().strip()).exists()


def test_secrets_are_not_taken_from_an_argument() -> None:
    sandbox = Sandbox(secrets={"a": b"b"})
    command = [sys.executable, "-I", "-m", "gnomon_runtime.sandbox", sandbox.to_json(), "--", "true"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 2


async def test_where_secrets_cannot_be_kept_apart_a_function_with_secrets_is_refused(running: Running) -> None:
    running.platform._supervisor.no_isolation = "user namespaces are forbidden"
    document = {"service": "f", "image": "functions/alpine", "envProcess": "cat"}
    running.platform.check(read_deployment(document))
    with pytest.raises(GnomonError, match="user namespaces are forbidden") as refused:
        running.platform.check(read_deployment({**document, "secrets": ["a"]}))
    assert (refused.value.status, refused.value.code) == (400, "secrets_unavailable")


async def test_an_isolated_instance_is_a_fork_and_loads_nothing_anew(running: Running) -> None:
    spec = read_deployment({"service": "quick", "image": "functions/alpine", "envProcess": "sh"})
    await running.platform.prepare(spec)
    pids = [int(await running.ask(await running.begin_spec(spec), "echo $PPID")) for _ in range(3)]
    assert len(set(pids)) == 3
    # A program that was started instead would have a command line of its own.
    assert {command_line(pid) for pid in pids} == {command_line(pid) for pid in zygotes(running)}


def command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def zygotes(running: Running) -> list[int]:
    supervisor = running.platform._supervisor.pid
    below = [int(text) for text in Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()]
    return [pid for pid in below if Path(f"/proc/{pid}/comm").read_text() == "gnomon zygote\n"]
