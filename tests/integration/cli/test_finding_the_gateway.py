"""Which gateway a command talks to, as whom, and what it says of both."""

from __future__ import annotations

import base64
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cli.conftest import STACK


class TestGatewayAddress:
    def test_the_flag_wins_then_the_file_then_the_variable(self, recorder: Any, gnomon: Any, tmp_path: Path) -> None:
        recorder.answer("GET", "/system/functions", 200, [])
        elsewhere = "http://127.0.0.1:1"
        (tmp_path / "stack.yml").write_text(STACK % elsewhere)
        assert gnomon("list", "-g", recorder.url, OPENFAAS_URL=elsewhere).returncode == 0
        (tmp_path / "stack.yml").write_text(STACK % recorder.url)
        assert gnomon("list", OPENFAAS_URL=elsewhere).returncode == 0
        (tmp_path / "stack.yml").write_text(STACK % "http://127.0.0.1:8080")
        assert gnomon("list", OPENFAAS_URL=recorder.url).returncode == 0
        (tmp_path / "stack.yml").write_text("not a stack file")
        assert gnomon("list", OPENFAAS_URL=recorder.url.removeprefix("http://") + "/").returncode == 0

    def test_nothing_listens(self, gnomon: Any) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{free.getsockname()[1]}"
            result = gnomon("list", "-g", url)
        assert result.returncode == 1
        assert (
            result.stderr
            == f"Error: Cannot reach {url}: Connection refused. Start it with `gnomon serve`, or name another gateway with -g.\n"
        )


class TestLogin:
    def test_a_login_is_checked_kept_and_used(self, recorder: Any, gnomon: Any, environment: dict[str, str]) -> None:
        result = gnomon("login", "--password-stdin", "-g", recorder.url, stdin="s3cret\n")
        assert result.returncode == 0, result.stderr
        path = Path(environment["HOME"], ".openfaas", "config.yml")
        token = base64.b64encode(b"admin:s3cret").decode()
        assert path.read_text() == f"auths:\n- gateway: {recorder.url}\n  auth: basic\n  token: {token}\n"
        assert path.stat().st_mode & 0o777 == 0o600
        gnomon("list", "-g", recorder.url)
        assert [seen.headers["Authorization"] for seen in recorder.requests] == [f"Basic {token}"] * 2
        assert gnomon("logout", "-g", recorder.url).returncode == 0
        assert path.read_text() == "auths: []\n"

    def test_a_wrong_password_is_not_kept(self, recorder: Any, gnomon: Any, environment: dict[str, str]) -> None:
        recorder.answer("GET", "/system/functions", 401, b"invalid credentials")
        assert gnomon("login", "-p", "wrong", "-g", recorder.url).returncode == 1
        assert not Path(environment["HOME"], ".openfaas", "config.yml").exists()

    @pytest.mark.parametrize("command", ["login", "logout"])
    def test_a_kept_login_that_cannot_be_read_is_replaced_or_forgotten(
        self, recorder: Any, gnomon: Any, environment: dict[str, str], command: str
    ) -> None:
        recorder.answer("GET", "/system/functions", 200, [])
        file = Path(environment["HOME"]) / ".openfaas" / "config.yml"
        file.parent.mkdir(parents=True)
        file.write_text(f"auths:\n- {{gateway: '{recorder.url}', auth: basic, token: '***'}}\n")
        assert "Log in again with `gnomon login`" in gnomon("list", "-g", recorder.url).stderr
        result = gnomon(command, *(["-p", "s3cret"] if command == "login" else []), "-g", recorder.url)
        assert (result.returncode, result.stderr) == (0, "")
        assert "***" not in file.read_text()
        assert gnomon("list", "-g", recorder.url).returncode == 0

    def test_a_gateway_that_asks_for_a_login_says_how(self, recorder: Any, gnomon: Any) -> None:
        recorder.answer("GET", "/system/functions", 401, b"invalid credentials")
        result = gnomon("list", "-g", recorder.url)
        assert (result.returncode, "gnomon login -g" in result.stderr) == (1, True)


class TestAbout:
    def test_version_tells_both(self, recorder: Any, gnomon: Any) -> None:
        provider = {"provider": "gnomon", "orchestration": "local", "version": {"release": "0.1.0", "sha": "abc"}}
        recorder.answer(
            "GET", "/system/info", 200, {"provider": provider, "version": {"release": "0.1.0", "sha": "abc"}, "arch": "x86_64"}
        )
        result = gnomon("version", "-g", recorder.url)
        assert f"gateway 0.1.0 abc at {recorder.url}" in result.stdout
        assert "provider gnomon 0.1.0 (local)" in result.stdout

    def test_namespaces(self, recorder: Any, gnomon: Any) -> None:
        recorder.answer("GET", "/system/namespaces", 200, ["openfaas-fn", "staging"])
        assert gnomon("namespaces", "-g", recorder.url).stdout == "openfaas-fn\nstaging\n"

    def test_ready_waits_for_an_instance(self, recorder: Any, gnomon: Any) -> None:
        recorder.answer("GET", "/system/function/one", 200, {"name": "one"})
        recorder.answer("GET", "/system/function/one", 200, {"name": "one", "availableReplicas": 1})
        assert gnomon("ready", "one", "--interval", "10ms", "-g", recorder.url).returncode == 0
        assert len(recorder.requests) == 2

    def test_ready_gives_up(self, recorder: Any, gnomon: Any) -> None:
        recorder.answer("GET", "/healthz", 503)
        assert gnomon("ready", "--attempts", "2", "--interval", "10ms", "-g", recorder.url).returncode == 1

    def test_policies_and_decisions(self, recorder: Any, gnomon: Any) -> None:
        known = {
            "scaling": [{"name": "kpa", "description": "Knative's."}],
            "scheduling": [{"name": "immediate", "description": "At once."}],
        }
        recorder.answer("GET", "/gnomon/policies", 200, known)
        assert "  kpa        Knative's.\n" in gnomon("policies", "-g", recorder.url).stdout
        action = {"action": "CreateBody", "cores": 1}
        record = {"at": "2026-01-01T00:00:00Z", "policy": "kpa", "reason": "Busy.", "desired": 2, "actions": [action, action]}
        recorder.answer("GET", "/gnomon/functions/one/decisions", 200, [record])
        assert gnomon("decisions", "one", "-g", recorder.url).stdout == "2026-01-01T00:00:00Z kpa CreateBody ×2: Busy.\n"
        shadow = {"action": "CreateShadow", "body": "b-1", "pair": {"shadow_cores": 2, "blocks": [1, 2, 3], "split": [0, 1]}}
        recorder.answer("GET", "/gnomon/functions/two/decisions", 200, [record | {"actions": [shadow]}])
        shown = gnomon("decisions", "two", "-g", recorder.url).stdout
        assert shown == "2026-01-01T00:00:00Z kpa CreateShadow(b-1: 3 blocks, 2 cores): Busy.\n"

    def test_a_decision_that_could_not_be_carried_out_says_why_and_how_often(self, recorder: Any, gnomon: Any) -> None:
        """A call that waited in vain names the decisions: without this they said that a Body was made."""
        action = {"action": "CreateBody", "cores": 1}
        record = {"at": "2026-01-01T00:00:00Z", "policy": "kpa", "reason": "Busy.", "desired": 1, "actions": [action]}
        failed = record | {"error": "no_capacity: An instance needs 1 cores.", "repeats": 98}
        recorder.answer("GET", "/gnomon/functions/one/decisions", 200, [failed, record | {"error": "", "repeats": 0}])
        assert gnomon("decisions", "one", "-g", recorder.url).stdout.splitlines() == [
            "2026-01-01T00:00:00Z kpa CreateBody: Busy.; failed: no_capacity: An instance needs 1 cores. (99 times)",
            "2026-01-01T00:00:00Z kpa CreateBody: Busy.",
        ]
