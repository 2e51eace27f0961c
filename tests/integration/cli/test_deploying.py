"""Deploying by the command line."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import tarfile
import time
from collections.abc import Iterable
from hashlib import sha256
from hmac import new as hmac
from pathlib import Path
from typing import Any

import pytest

from gnomon_cli.commands.up import CONFIG
from gnomon_cli.stack import MAX_DOWNLOAD_BYTES
from tests.integration.cli.conftest import STACK

REFUSED = {"error": {"code": "unknown_policy", "message": "There is no scaling policy 'kp'.", "hint": "Known ones: fixed,\nkpa."}}


def documents(recorder: Any) -> list[object]:
    return [json.loads(seen.body) for seen in recorder.requests]


def files_of(archive: bytes) -> dict[str, Any]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        files: dict[str, Any] = {member.name: tar.extractfile(member).read() for member in tar if member.isfile()}
    return files | {CONFIG: json.loads(files[CONFIG])}


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

    def test_stack_file_may_be_a_url(self, recorder: Any, gnomon: Any) -> None:
        recorder.answer("GET", "/files/stack.yml", document=STACK.encode() % b"http://unused:1")
        result = gnomon("deploy", "-f", f"{recorder.url}/files/stack.yml", "--filter", "one", "-g", recorder.url, "--no-wait")
        assert result.returncode == 0, result.stderr
        assert recorder.calls() == ["GET /files/stack.yml", "PUT /system/functions"]
        assert json.loads(recorder.requests[1].body)["image"] == "ada/one:latest"

    @pytest.mark.parametrize(
        ("path", "answer", "message"),
        [
            ("/none", {"status": 404}, "404 Not Found"),
            ("/large", {"document": b"#" * (MAX_DOWNLOAD_BYTES + 1)}, f"is larger than {MAX_DOWNLOAD_BYTES} bytes"),
            ("/picture", {"document": b"\xff\xd8"}, "is not UTF-8 text"),
            (":1/none", {}, "Name or service not known"),
        ],
    )
    def test_url_without_a_stack_file_is_an_error(
        self, recorder: Any, gnomon: Any, path: str, answer: dict[str, Any], message: str
    ) -> None:
        recorder.answer("GET", path, **answer)
        result = gnomon("deploy", "-f", recorder.url + path, "-g", recorder.url)
        assert result.returncode == 1
        assert message in result.stderr
        assert "Traceback" not in result.stderr

    def test_replace_and_update_together_are_a_usage_error(self, recorder: Any, gnomon: Any) -> None:
        result = gnomon("deploy", "--image", "i", "--name", "n", "--replace=true", "--update=true", "-g", recorder.url)
        assert (result.returncode, recorder.requests) == (2, [])

    def test_faas_clis_way_to_write_switches(self, recorder: Any, gnomon: Any) -> None:
        assert (
            gnomon("deploy", "--image", "i", "--name", "n", "--replace=true", "--update=false", "-g", recorder.url).returncode
            == 0
        )
        assert recorder.calls() == ["DELETE /system/functions", "POST /system/functions"]

    def test_an_environment_file_that_is_no_text_is_named(self, recorder: Any, gnomon: Any, tmp_path: Path) -> None:
        (tmp_path / "stack.yml").write_text(
            f"provider: {{name: openfaas, gateway: {recorder.url}}}\n"
            "functions: {one: {image: i, fprocess: cat, environment_file: [env.yml]}}\n"
        )
        (tmp_path / "env.yml").write_bytes("environment: {NAME: Jürgen}\n".encode("latin-1"))
        result = gnomon("deploy")
        assert (result.returncode, recorder.requests) == (1, [])
        assert result.stderr == "Error: stack.yml:2: functions.one.environment_file: env.yml: no text in UTF-8.\n"

    def test_failed_deployment_does_not_stop_the_others(self, recorder: Any, gnomon: Any, tmp_path: Path) -> None:
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
        subprocess.run(command, cwd=project, env=environment, check=True, capture_output=True, timeout=100)
        ours, theirs = [files_of(seen.body) for seen in recorder.requests]
        assert ours == theirs

    def test_a_failed_build_is_not_deployed(self, recorder: Any, gnomon: Any) -> None:
        recorder.answer("POST", "/build", 200, b'{"log":["no such package"],"status":"failed","error":"pip said no."}\n')
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
    def test_missing_inputs_are_reported_before_anything_is_sent(
        self, recorder: Any, gnomon: Any, flags: list[str], problem: str
    ) -> None:
        result = gnomon("up", "--filter", "greet", *flags)
        assert (result.returncode, recorder.requests) == (1, [])
        assert problem in result.stderr


NASTY = Path(__file__).parent / "nasty"
VARIABLES = {
    "SET": "hello",
    "TAG": "7",
    "SHOUT": "LOUD Voice",
    "WORDS": "foo boo bar",
    "PATH_LIKE": "a/b/c",
}
FLAGS = [
    "--filter",
    "o*",
    "-n",
    "other",
    "-e",
    "ONLY=flag",
    "-e",
    "EXTRA=a=b",
    "--label",
    "x=1",
    "--annotation",
    "gnomon/cores=2",
    "--secret",
    "zero",
    "--secret",
    "second",
    "--constraint",
    "ignored",
    "--readonly",
]
EXPECTED_WITH_FLAGS = {
    "service": "overridden",
    "image": "ada/overridden:1.2",
    "namespace": "other",
    "envProcess": "sh -c 'cat && echo \"$HOME\"'",
    "envVars": {"EXTRA": "a=b", "FLAG": "off", "FROM": "one", "ONE": "1.50", "ONLY": "flag", "THIRD": "two"},
    "constraints": ["node.platform.os == linux"],
    "secrets": ["zero", "second", "first"],
    "labels": {"x": "1"},
    "annotations": {"gnomon/cores": "2"},
    "limits": {"memory": "128Mi", "cpu": "100m"},
    "requests": {"memory": "64Mi"},
    "readOnlyRootFilesystem": True,
}


def expected() -> dict[str, object]:
    return by_service((NASTY / "bodies.ndjson").read_bytes().splitlines())


def by_service(bodies: Iterable[bytes]) -> dict[str, object]:
    return {document["service"]: document for document in map(json.loads, bodies)}


def test_every_text_of_a_stack_file_arrives_as_it_was_written(recorder: Any, gnomon: Any) -> None:
    result = gnomon("deploy", "-f", "stack.yml", cwd=NASTY, GATEWAY=recorder.url, **VARIABLES)
    assert result.returncode == 0, result.stderr
    assert by_service(seen.body for seen in recorder.requests) == expected()


def test_flags_win_over_the_file_and_named_secrets_come_first(recorder: Any, gnomon: Any) -> None:
    result = gnomon("deploy", "-f", "stack.yml", *FLAGS, cwd=NASTY, GATEWAY=recorder.url, **VARIABLES)
    assert result.returncode == 0, result.stderr
    assert documents(recorder) == [EXPECTED_WITH_FLAGS]


@pytest.mark.faas_cli
@pytest.mark.parametrize("flags", [[], FLAGS], ids=["plain", "flags"])
def test_the_real_faas_cli_sends_the_same(recorder: Any, environment: dict[str, str], flags: list[str]) -> None:
    faas_cli = shutil.which("faas-cli")
    if faas_cli is None:
        pytest.skip("no faas-cli on PATH")
    command = [faas_cli, "deploy", "-f", "stack.yml", *flags]
    subprocess.run(
        command, cwd=NASTY, env={**environment, **VARIABLES, "GATEWAY": recorder.url}, check=True, capture_output=True, timeout=60
    )
    if flags:
        assert documents(recorder) == [EXPECTED_WITH_FLAGS]
    else:
        assert by_service(seen.body for seen in recorder.requests) == expected()


LINE = json.dumps({"name": "echo", "text": "hello"}).encode() + b"\n"


def test_the_gateway_may_be_named_in_front_of_the_command(recorder: Any, gnomon: Any) -> None:
    recorder.answer("GET", "/system/functions", document=[{"name": "echo"}])
    done = gnomon("-g", recorder.url, "list", "-q")
    assert (done.returncode, done.stdout) == (0, "echo\n")


def test_version_needs_no_gateway(gnomon: Any) -> None:
    done = gnomon("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("gnomon ")


def test_logs_f_follows_as_with_kubectl(recorder: Any, gnomon: Any) -> None:
    recorder.answer("GET", "/system/logs", document=LINE)
    for words in (("-f", "echo"), ("echo", "-f")):
        done = gnomon("logs", *words, "-g", recorder.url)
        assert (done.returncode, done.stdout) == (0, "hello\n")
    assert recorder.calls() == ["GET /system/logs?follow=true&name=echo&tail=-1"] * 2


def test_logs_f_still_takes_a_stack_file(recorder: Any, gnomon: Any, tmp_path: Any) -> None:
    (tmp_path / "mine.yml").write_text(f"provider: {{name: openfaas, gateway: {recorder.url}}}\n")
    recorder.answer("GET", "/system/logs", document=LINE)
    assert gnomon("logs", "-f", "mine.yml", "echo").stdout == "hello\n"


def test_the_timeout_of_ready_bounds_the_whole_wait(recorder: Any, gnomon: Any) -> None:
    recorder.answer("GET", "/system/function/echo", document={"name": "echo"})
    began_s = time.monotonic()
    done = gnomon("ready", "echo", "--timeout", "1s", "--interval", "200ms", "--attempts", "1000", "-g", recorder.url)
    assert done.returncode == 1
    assert "not ready after 1." in done.stderr
    assert len(recorder.requests) <= 6
    assert time.monotonic() - began_s < 30


def test_a_warning_names_the_key_that_was_meant_and_the_function_is_deployed(recorder: Any, gnomon: Any, tmp_path: Any) -> None:
    head = f"provider: {{name: openfaas, gateway: {recorder.url}}}\n"
    (tmp_path / "stack.yml").write_text(head + "functions:\n  echo:\n    image: e:1\n    anotations: {a: b}\n")
    recorder.answer("PUT", "/system/functions", 202)
    done = gnomon("deploy")
    assert done.returncode == 0
    assert "Warning: stack.yml:5: functions.echo.anotations is not a key" in done.stderr
    assert "Did you mean annotations?" in done.stderr


def test_our_own_templates_need_no_pull_outside_of_a_clone(recorder: Any, gnomon: Any, tmp_path: Any) -> None:
    (tmp_path / "mine").mkdir()
    stack = "version: 1.0\nprovider: {name: openfaas}\nfunctions:\n  a: {lang: %s, handler: ./mine, image: a:1}\n"
    (tmp_path / "stack.yml").write_text(stack % "gnomon-boddy")
    done = gnomon("deploy", "-g", recorder.url)
    assert done.returncode == 1
    assert "Did you mean gnomon-body?" in done.stderr
    (tmp_path / "stack.yml").write_text(stack % "gnomon-body")
    done = gnomon("up", "--payload-secret", "missing", "-g", recorder.url)
    assert "missing: No such file" in done.stderr, "the template was found; only the builder's secret was not"


def test_fewer_than_no_replicas_are_a_number_out_of_range(recorder: Any, gnomon: Any) -> None:
    done = gnomon("scale", "echo", "-1", "-g", recorder.url)
    assert done.returncode == 2
    assert "-1 is not in the range" in done.stderr
    assert recorder.requests == []
