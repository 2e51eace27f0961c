"""What a function reaches beyond itself: nothing of ours, nothing of others."""

from __future__ import annotations

import json
import os

import pytest

from tests.integration.hostile.conftest import MARKER
from tests.integration.hostile.functions import Function
from tests.waiting import eventually

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give functions users of their own")


def test_function_cannot_read_the_server_s_files(survivor: Function) -> None:
    gateway = survivor.gateway
    seen = survivor.shell(
        f"ls -laR {gateway.state} {gateway.state}/platform; cat {gateway.state}/functions.db {gateway.state}/payload-secret;"
        f"cat /proc/{gateway.pid}/environ /proc/{gateway.pid}/cmdline; ls /proc/{gateway.pid}/fd; env; set"
    )
    assert (gateway.state / "payload-secret").read_text() not in seen
    for ours in ("SQLite", "gnomon_cli", "users.json", MARKER):
        assert ours not in seen


def test_function_cannot_get_secrets_of_others(villain: Function, bystander: Function) -> None:
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


def test_function_cannot_touch_other_processes(villain: Function, bystander: Function) -> None:
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


def test_function_writes_to_its_own_tmp_only_and_binds_no_low_port(survivor: Function) -> None:
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
