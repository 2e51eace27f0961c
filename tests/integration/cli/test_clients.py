"""Functions and secrets by the command line; where the gateway is."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
from hashlib import sha256
from hmac import new as hmac
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gnomon_cli.deployment import Overrides, from_stack
from gnomon_cli.output import CommandFailed
from gnomon_cli.stack import parse_stack
from tests.integration.cli.conftest import STACK

STATUS = {
    "name": "one",
    "image": "ada/one:latest",
    "namespace": "openfaas-fn",
    "availableReplicas": 1,
    "replicas": 2,
    "invocationCount": 7.0,
    "labels": {"b": "2", "a": "1"},
    "usage": {"cpu": 250.4, "totalMemoryBytes": 3145728},
}


def documents(recorder: Any) -> list[object]:
    return [json.loads(seen.body) for seen in recorder.requests]


class TestFunctions:
    def test_list(self, recorder: Any, gnomon: Any) -> None:
        recorder.answer("GET", "/system/functions", 200, [{**STATUS, "name": "z"}, {"name": "a", "image": "i"}])
        result = gnomon("list", "-n", "staging", "-g", recorder.url)
        assert [line.split() for line in result.stdout.splitlines()[1:]] == [["a", "0", "0", "0"], ["z", "7", "2", "1"]]
        assert recorder.calls() == ["GET /system/functions?namespace=staging"]
        assert gnomon("list", "-q", "--sort", "invocations", "-g", recorder.url).stdout == "z\na\n"
        assert [function["name"] for function in json.loads(gnomon("ls", "--json", "-g", recorder.url).stdout)] == ["a", "z"]

    def test_a_gateway_without_tls_is_not_said_to_have_a_bad_certificate(self, recorder: Any, gnomon: Any) -> None:
        result = gnomon("list", "-g", recorder.url.replace("http:", "https:"))
        assert result.returncode == 1
        assert "does not speak TLS" in result.stderr
        assert f"Write {recorder.url}" in result.stderr
        assert "certificate" not in result.stderr

    def test_describe_takes_the_count_from_the_list(self, recorder: Any, gnomon: Any) -> None:
        recorder.answer("GET", "/system/function/one", 200, STATUS | {"invocationCount": 0})
        recorder.answer("GET", "/system/functions", 200, [STATUS])
        result = gnomon("describe", "one", "-g", recorder.url)
        calls = ["GET /system/function/one?usage=1", "GET /system/functions", "GET /gnomon/functions/one"]
        assert recorder.calls() == calls
        lines = result.stdout.splitlines()
        assert "Invocations: 7" in lines
        assert lines[lines.index("Labels:") : lines.index("Labels:") + 3] == ["Labels:", "  a: 1", "  b: 2"]
        assert "  RAM: 3.0 MiB" in lines
        assert json.loads(gnomon("describe", "one", "--json", "-g", recorder.url).stdout)["status"] == "Ready"

    def test_describe_shows_bodies_and_shadows_where_the_gateway_knows_them(self, recorder: Any, gnomon: Any) -> None:
        recorder.answer("GET", "/system/function/one", 200, STATUS)
        recorder.answer("GET", "/system/functions", 200, [STATUS])
        body = {"id": "b-1", "state": "ready", "cores": 1, "memory_bytes": 2**27, "max_batch": 8, "in_flight": 3, "shadow": "s-1"}
        shadow = {"id": "s-1", "state": "ready", "cores": 2, "memory_bytes": 2**25, "body": "b-1", "blocks": [0, 1, 2, 5]}
        shadow |= {"split": [0, 1, 1, 2], "parameter_share": 0.331}
        pairs = {"batches": 4, "offloaded_samples": 14, "misses": 1, "predicted_s": 0.2, "measured_s": 0.21}
        recorder.answer("GET", "/gnomon/functions/one", 200, {"bodies": [body], "shadows": [shadow], "pairs": pairs})
        lines = gnomon("describe", "one", "-g", recorder.url).stdout.splitlines()
        shown = [line.split() for line in lines[lines.index("Bodies:") :]]
        assert shown[2] == ["b-1", "ready", "1", "128", "MiB", "8", "3", "s-1"]
        assert shown[5] == ["s-1", "ready", "2", "32", "MiB", "b-1", "0-2,5", "33", "%", "0/1/1/2"]
        assert lines[-1] == "Pairs: 4 batches, 14 samples computed by Shadows, 1 misses; 52.5 ms a batch, predicted 50.0 ms"
        assert json.loads(gnomon("describe", "one", "--json", "-g", recorder.url).stdout)["instances"]["shadows"] == [shadow]

    def test_describe_says_which_scaling_policy_decides_and_why(self, recorder: Any, gnomon: Any) -> None:
        recorder.answer("GET", "/system/function/one", 200, STATUS)
        recorder.answer("GET", "/system/functions", 200, [STATUS])
        reason = "batch failed 3 times, fixed instead (no answer within 1 s of CPU time): 2 as before"
        in_force = {"policy": "fixed", "reason": reason, "error": ""}
        recorder.answer("GET", "/gnomon/functions/one", 200, {"scaling": "batch", "scaling_in_force": in_force})
        lines = gnomon("describe", "one", "-g", recorder.url).stdout.splitlines()
        assert f"Scaling policy: fixed (in place of batch): {reason}" in lines

    def test_scale_names_the_function_and_its_namespace(self, recorder: Any, gnomon: Any) -> None:
        recorder.answer("POST", "/system/scale-function/one", 202)
        assert gnomon("scale", "one", "3", "-n", "staging", "-g", recorder.url).returncode == 0
        assert documents(recorder) == [{"serviceName": "one", "replicas": 3, "namespace": "staging"}]

    def test_remove_by_name_and_by_file(self, recorder: Any, gnomon: Any, tmp_path: Path) -> None:
        (tmp_path / "some.yml").write_text(STACK % recorder.url)
        assert gnomon("remove", "-f", "some.yml").returncode == 0
        assert gnomon("rm", "three", "-g", recorder.url).returncode == 0
        expected = [{"functionName": "one"}, {"functionName": "two", "namespace": "staging"}, {"functionName": "three"}]
        assert documents(recorder) == expected
        assert gnomon("remove", "-g", recorder.url).returncode == 2

    def test_an_unknown_function_is_a_failure(self, recorder: Any, gnomon: Any) -> None:
        recorder.answer(
            "DELETE", "/system/functions", 404, {"error": {"code": "function_not_found", "message": "No such function."}}
        )
        result = gnomon("remove", "nobody", "-g", recorder.url)
        assert (result.returncode, result.stderr) == (1, "Error: nobody: No such function. (404 function_not_found)\n")


class TestInvoke:
    def test_the_namespace_is_always_named(self, recorder: Any, gnomon: Any) -> None:
        recorder.answer("POST", "/function/env.openfaas-fn", 200, b"hello\0world")
        result = gnomon("invoke", "env", "--query", "z=1", "--query", "a=b c", "-H", "X-One: 1", "-g", recorder.url, stdin="body")
        seen = recorder.requests[0]
        assert (seen.path, seen.body, result.stdout) == ("/function/env.openfaas-fn?z=1&a=b+c", b"body", "hello\0world")
        assert (seen.headers["X-One"], seen.headers["Content-Type"]) == ("1", "text/plain")

    def test_a_file_is_sent_as_what_it_is(self, recorder: Any, gnomon: Any, tmp_path: Path) -> None:
        (tmp_path / "photo.jpg").write_bytes(b"\xff\xd8")
        assert gnomon("invoke", "classify.staging", "-d", "@photo.jpg", "-m", "put", "-g", recorder.url).returncode == 0
        seen = recorder.requests[0]
        assert (seen.method, seen.path, seen.body) == ("PUT", "/function/classify.staging", b"\xff\xd8")
        assert seen.headers["Content-Type"] == "image/jpeg"

    def test_async_prints_the_call_id(self, recorder: Any, gnomon: Any) -> None:
        recorder.answer("POST", "/async-function/f.openfaas-fn", 202, X_Call_Id="c-1")
        assert gnomon("invoke", "f", "--async", "-d", "x", "-g", recorder.url).stdout == "c-1\n"

    def test_a_signature_covers_the_body(self, recorder: Any, gnomon: Any) -> None:
        gnomon("invoke", "f", "-d", "x", "--sign", "X-Hub-Signature", "--key", "k", "-g", recorder.url)
        assert recorder.requests[0].headers["X-Hub-Signature"] == "sha256=" + hmac(b"k", b"x", sha256).hexdigest()

    def test_an_error_of_the_function_is_told_with_its_status(self, recorder: Any, gnomon: Any) -> None:
        recorder.answer("POST", "/function/f.openfaas-fn", 500, b"Traceback\n  ValueError")
        result = gnomon("invoke", "f", "-d", "x", "-g", recorder.url)
        assert (result.returncode, result.stdout) == (1, "")
        assert result.stderr == f"Error: {recorder.url} answered 500: Traceback ValueError\n"

    def test_our_login_is_not_shown_to_functions(self, recorder: Any, gnomon: Any) -> None:
        gnomon("login", "-p", "s3cret", "-g", recorder.url)
        gnomon("invoke", "f", "-d", "x", "-g", recorder.url)
        assert "Authorization" in recorder.requests[0].headers
        assert "Authorization" not in recorder.requests[1].headers


class TestLogs:
    LINES = (
        b'{"name":"f","instance":"f-1","timestamp":"2026-01-01T00:00:00Z","text":"one\\n"}\n\n'
        b'{"name":"f","instance":"f-1","timestamp":"t","text":"two"}\n'
    )

    def test_plain_lines_and_the_query_of_faas_cli(self, recorder: Any, gnomon: Any) -> None:
        recorder.answer("GET", "/system/logs", 200, self.LINES)
        result = gnomon(
            "logs", "f", "--instance", "--tail=false", "--since-time", "2026-01-01T01:00:00+01:00", "-g", recorder.url
        )
        assert result.stdout == "2026-01-01T00:00:00Z (f-1) one\nt (f-1) two\n"
        assert recorder.calls() == ["GET /system/logs?follow=false&name=f&since=2026-01-01T00%3A00%3A00Z&tail=-1"]

    def test_json_lines(self, recorder: Any, gnomon: Any) -> None:
        recorder.answer("GET", "/system/logs", 200, self.LINES)
        lines = gnomon("logs", "f", "--json", "-g", recorder.url).stdout.splitlines()
        assert [json.loads(line)["text"] for line in lines] == ["one\n", "two"]

    def test_keys_and_values(self, recorder: Any, gnomon: Any) -> None:
        recorder.answer("GET", "/system/logs", 200, self.LINES)
        result = gnomon("logs", "f", "-o", "keyvalue", "--name", "--no-time", "-g", recorder.url)
        assert result.stdout == 'name="f" text="one"\nname="f" text="two"\n'


class TestSecrets:
    def test_a_file_travels_as_text_and_as_its_bytes(self, recorder: Any, gnomon: Any, tmp_path: Path) -> None:
        (tmp_path / "key").write_bytes(b" k\xff\n")
        assert gnomon("secret", "create", "api-key", "--from-file", "key", "-g", recorder.url).returncode == 0
        assert documents(recorder) == [
            {"name": "api-key", "value": "k\ufffd", "rawValue": base64.b64encode(b" k\xff\n").decode()}
        ]

    def test_replace_updates_one_that_exists(self, recorder: Any, gnomon: Any) -> None:
        recorder.answer("POST", "/system/secrets", 409)
        assert gnomon("secret", "create", "a", "--replace", "-n", "staging", "-g", recorder.url, stdin="v\n").returncode == 0
        assert recorder.calls() == ["POST /system/secrets", "PUT /system/secrets"]
        assert documents(recorder)[1] == {"name": "a", "namespace": "staging", "value": "v"}

    def test_list_update_remove(self, recorder: Any, gnomon: Any) -> None:
        recorder.answer("GET", "/system/secrets", 200, [{"name": "a"}, {"name": "b"}])
        assert gnomon("secret", "list", "-g", recorder.url).stdout == "a\nb\n"
        assert gnomon("secret", "update", "a", "--from-literal", " v ", "--no-trim", "-g", recorder.url).returncode == 0
        assert gnomon("secret", "remove", "a", "-g", recorder.url).returncode == 0
        assert [json.loads(seen.body) for seen in recorder.requests[1:]] == [{"name": "a", "value": " v "}, {"name": "a"}]

    @pytest.mark.parametrize("args", [["Api_Key"], ["a", "--from-literal", "x", "--from-file", "y"]])
    def test_a_command_that_is_written_wrongly_sends_nothing(self, recorder: Any, gnomon: Any, args: list[str]) -> None:
        assert gnomon("secret", "create", *args, "-g", recorder.url, stdin="v").returncode == 2
        assert recorder.requests == []


VARIABLES = {"A": "hello", "B": "", "C": "a/b.c/d"}
FORMS = [
    "${A}",
    "${B}",
    "${A:-x}",
    "${B:-x}",
    "${B:=${A}}",
    "$$",
    "$",
    "\\\\",
    "\\/",
    "\\",
    "/",
    "}",
    "{",
    "${A/l/L}",
    "${A//l/}",
    "${C##*/}",
    "${C%.*}",
    "${A:1}",
    "${A:1:2}",
    "${A:9}",
    "${#C}",
    "${A^}",
    "${A,,}",
    "a",
    "é",
    "#",
    "${",
    "${A",
    "${B:-${A}${C}}",
    "${A#h?l}",
    "${C%%/*}",
    "${A/#he/}",
    "${A/%lo/x}",
    "${B:-}",
    "${A:-2:1}",
    "${B:+y}",
    "${B:?z}",
    "${A-x}",
    "${}",
    "${A##[a-h]*}",
]
SCALARS = [
    "1.0",
    "yes",
    "0o7",
    "~",
    "null",
    "0x1F",
    "1e3",
    "'q'",
    '"d\\n"',
    "[a]",
    "{a:",
    "b}",
    "!!str",
    "&x",
    "*x",
    "2020-01-01",
    "=",
    "<<",
    "%a",
    "@a",
    "`a`",
    "12:30",
    "+1",
    "-",
    "off",
    "Y",
    "'it''s'",
    "---",
    '"\\u00e9"',
    "!!binary",
    "-.inf",
    "0644",
    "1_000",
]
VALUES = st.one_of(
    st.lists(st.sampled_from([*FORMS, " "]), min_size=1, max_size=5).map("".join),
    st.lists(st.sampled_from(SCALARS), min_size=1, max_size=2).map(" ".join),
)


def what_we_send(text: str) -> Any:
    try:
        stack = parse_stack(text, "stack.yml", VARIABLES)
        return json.loads(from_stack(stack, stack.functions[0], Overrides()).body)
    except CommandFailed:
        return None


@pytest.mark.faas_cli
@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(value=VALUES, field=st.sampled_from(["environment", "annotations", "labels"]), switch=st.sampled_from(["", *SCALARS]))
def test_any_text(recorder: Any, environment: dict[str, str], tmp_path: Path, *, value: str, field: str, switch: str) -> None:
    faas_cli = shutil.which("faas-cli")
    if faas_cli is None:
        pytest.skip("no faas-cli on PATH")
    text = (
        f"version: 1.0\nprovider:\n  name: openfaas\n  gateway: {recorder.url}\n"
        f"functions:\n  f:\n    image: i\n    readonly_root_filesystem: {switch}\n    {field}:\n      key: {value}\n"
    )
    (tmp_path / "stack.yml").write_text(text)
    recorder.requests.clear()
    command = [faas_cli, "deploy", "-f", "stack.yml"]
    subprocess.run(command, cwd=tmp_path, env=environment | VARIABLES, capture_output=True, check=False, timeout=100)
    theirs = json.loads(recorder.requests[0].body) if recorder.requests else None
    assert what_we_send(text) == theirs


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
