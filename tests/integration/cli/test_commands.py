"""Each command against a real HTTP server: what it asks, what it prints, and how it ends."""

from __future__ import annotations

import base64
import io
import json
import shutil
import socket
import subprocess
import tarfile
from hashlib import sha256
from hmac import new as hmac
from pathlib import Path
from typing import Any

import pytest

STACK = """
version: 1.0
provider: {name: openfaas, gateway: %s}
functions:
  one: {image: ada/one, fprocess: cat}
  two: {image: ada/two, fprocess: cat, namespace: staging}
"""
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
REFUSED = {"error": {"code": "unknown_policy", "message": "There is no scaling policy 'kp'.", "hint": "Known ones: fixed,\nkpa."}}


def documents(recorder: Any) -> list[object]:
    return [json.loads(seen.body) for seen in recorder.requests]


def files_of(archive: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar if member.isfile()}


class TestDeploy:
    def test_an_unknown_function_is_updated_first_and_then_created(self, recorder: Any, gnomon: Any) -> None:
        recorder.answer("PUT", "/system/functions", 404)
        recorder.answer("POST", "/system/functions", 202)
        result = gnomon("deploy", "--image", "ada/one", "--name", "one", "-g", recorder.url)
        assert result.returncode == 0
        assert recorder.calls() == ["PUT /system/functions", "POST /system/functions"]
        assert documents(recorder)[1] == {"service": "one", "image": "ada/one", "labels": {}, "annotations": {}}
        assert f"{recorder.url}/function/one" in result.stdout

    def test_replace_removes_first_and_then_creates(self, recorder: Any, gnomon: Any) -> None:
        result = gnomon("deploy", "--image", "ada/one", "--name", "one", "-n", "staging", "--replace", "-g", recorder.url)
        assert result.returncode == 0
        assert recorder.calls() == ["DELETE /system/functions", "POST /system/functions"]
        assert documents(recorder)[0] == {"functionName": "one", "namespace": "staging"}

    def test_replace_and_update_together_are_a_usage_error(self, recorder: Any, gnomon: Any) -> None:
        result = gnomon("deploy", "--image", "i", "--name", "n", "--replace=true", "--update=true", "-g", recorder.url)
        assert (result.returncode, recorder.requests) == (2, [])

    def test_faas_clis_way_to_write_switches(self, recorder: Any, gnomon: Any) -> None:
        assert (
            gnomon("deploy", "--image", "i", "--name", "n", "--replace=true", "--update=false", "-g", recorder.url).returncode
            == 0
        )
        assert recorder.calls() == ["DELETE /system/functions", "POST /system/functions"]

    def test_one_failure_does_not_keep_the_others_from_being_deployed(self, recorder: Any, gnomon: Any, tmp_path: Path) -> None:
        (tmp_path / "stack.yml").write_text(STACK % recorder.url)
        recorder.answer("PUT", "/system/functions", 400, REFUSED)
        recorder.answer("PUT", "/system/functions", 202)
        result = gnomon("deploy")
        assert result.returncode == 1
        assert [document["service"] for document in documents(recorder)] == ["one", "two"]
        assert result.stderr == "Error: one: There is no scaling policy 'kp'. Known ones: fixed, kpa. (400 unknown_policy)\n"
        assert "/function/two.staging" in result.stdout

    def test_json_lists_what_was_deployed(self, recorder: Any, gnomon: Any, tmp_path: Path) -> None:
        (tmp_path / "stack.yml").write_text(STACK % recorder.url)
        result = gnomon("deploy", "--filter", "one", "--json")
        assert json.loads(result.stdout) == [{"name": "one", "status": 200, "url": f"{recorder.url}/function/one"}]


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


class TestFunctions:
    def test_list(self, recorder: Any, gnomon: Any) -> None:
        recorder.answer("GET", "/system/functions", 200, [{**STATUS, "name": "z"}, {"name": "a", "image": "i"}])
        result = gnomon("list", "-n", "staging", "-g", recorder.url)
        assert [line.split() for line in result.stdout.splitlines()[1:]] == [["a", "0", "0", "0"], ["z", "7", "2", "1"]]
        assert recorder.calls() == ["GET /system/functions?namespace=staging"]
        assert gnomon("list", "-q", "--sort", "invocations", "-g", recorder.url).stdout == "z\na\n"
        assert [function["name"] for function in json.loads(gnomon("ls", "--json", "-g", recorder.url).stdout)] == ["a", "z"]

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
        assert (seen.path, seen.body, result.stdout) == ("/function/env.openfaas-fn?a=b+c&z=1", b"body", "hello\0world")
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


@pytest.mark.usefixtures("project")
class TestUp:
    @pytest.fixture
    def project(self, tmp_path: Path, recorder: Any) -> Path:
        for name, text in {
            "template/python/template.yml": "fprocess: python index.py\nbuild_options: [{name: dev, packages: [make, git]}]\n",
            "template/python/index.py": "import handler",
            "template/python/function/handler.py": "the template's",
            "template/python/function/requirements.txt": "",
            "greet/handler.py": "the user's",
            "greet/__pycache__/handler.pyc": "noise",
            "greet/build/left.txt": "noise",
            "common/words.txt": "hello",
            ".gnomon/payload-secret": "s3cret\n",
            "stack.yml": (STACK % recorder.url)
            + "  greet:\n    lang: python\n    handler: ./greet\n    image: ada/greet\n"
            + "    build_args: {VERSION: 1.0}\n    build_options: [dev]\nconfiguration: {copy: [./common]}\n",
        }.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    def test_builds_with_a_signature_shows_the_log_and_deploys(self, recorder: Any, gnomon: Any) -> None:
        lines = [
            {"log": ["step 1"], "image": "", "status": "in_progress"},
            {"log": [], "image": "ada/greet:latest", "status": "success"},
        ]
        recorder.answer("POST", "/build", 202, b"".join(json.dumps(line).encode() + b"\n" for line in lines))
        result = gnomon("up", "--filter", "greet")
        assert result.returncode == 0, result.stderr
        assert "step 1" in result.stderr
        build, deploy = recorder.requests
        assert build.headers["X-Build-Signature"] == "sha256=" + hmac(b"s3cret", build.body, sha256).hexdigest()
        with tarfile.open(fileobj=io.BytesIO(build.body)) as archive:
            names = archive.getnames()
            config = json.load(archive.extractfile("com.openfaas.docker.config"))
            handler = archive.extractfile("context/function/handler.py").read()
        assert names == [
            "context/function/common/words.txt",
            "context/function/handler.py",
            "context/function/requirements.txt",
            "context/index.py",
            "context/template.yml",
            "com.openfaas.docker.config",
        ]
        assert handler == b"the user's"
        assert config == {"image": "ada/greet:latest", "buildArgs": {"ADDITIONAL_PACKAGE": "git make", "VERSION": "1.0"}}
        assert json.loads(deploy.body)["envProcess"] == "python index.py"

    def test_the_same_files_give_the_same_archive(self, recorder: Any, gnomon: Any, project: Path) -> None:
        recorder.answer("POST", "/build", 200, b'{"status":"success"}\n')
        gnomon("up", "--filter", "greet", "--skip-deploy")
        (project / "greet" / "handler.py").touch()
        gnomon("up", "--filter", "greet", "--skip-deploy")
        assert recorder.requests[0].body == recorder.requests[1].body

    @pytest.mark.faas_cli
    def test_the_real_faas_cli_sends_the_same_files(
        self, recorder: Any, gnomon: Any, project: Path, environment: dict[str, str]
    ) -> None:
        faas_cli = shutil.which("faas-cli")
        if faas_cli is None:
            pytest.skip("no faas-cli on PATH")
        shutil.rmtree(project / "greet" / "__pycache__")
        recorder.answer("POST", "/build", 200, b'{"status":"success"}\n')
        flags = [
            "--filter",
            "greet",
            "--skip-deploy",
            "--payload-secret",
            ".gnomon/payload-secret",
            "--remote-builder",
            recorder.url,
        ]
        assert gnomon("up", *flags, "-b", "DEBUG=on").returncode == 0
        command = [faas_cli, "up", *flags, "-b", "DEBUG=on"]
        subprocess.run(command, cwd=project, env=environment, check=True, capture_output=True, timeout=30)
        ours, theirs = [files_of(seen.body) for seen in recorder.requests]
        assert ours == theirs

    def test_a_failed_build_is_not_deployed(self, recorder: Any, gnomon: Any) -> None:
        recorder.answer("POST", "/build", 200, b'{"log":["no such package"],"status":"failed","error":"pip said no"}\n')
        result = gnomon("up", "--filter", "greet")
        assert (result.returncode, len(recorder.requests)) == (1, 1)
        assert result.stderr.endswith("Error: greet was not built: pip said no.\n")

    def test_a_builder_that_speaks_something_else_is_told(self, recorder: Any, gnomon: Any) -> None:
        recorder.answer("POST", "/build", 200, b"<html>")
        result = gnomon("up", "--filter", "greet")
        assert (result.returncode, "no JSON document: '<html>'" in result.stderr) == (1, True)

    @pytest.mark.parametrize(
        ("flags", "problem"),
        [
            (["--build-option", "none"], "has no option 'none'"),
            (["--copy-extra", "/etc"], "is not inside the project"),
            (["--payload-secret", "absent"], "--payload-secret"),
        ],
    )
    def test_what_is_missing_is_told_before_anything_is_sent(
        self, recorder: Any, gnomon: Any, flags: list[str], problem: str
    ) -> None:
        result = gnomon("up", "--filter", "greet", *flags)
        assert (result.returncode, recorder.requests) == (1, [])
        assert problem in result.stderr
