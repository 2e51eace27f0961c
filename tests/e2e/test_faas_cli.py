"""The life of a function by `gnomon` and by the real `faas-cli`, both against `gnomon serve`."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
GNOMON = [sys.executable, "-c", "from gnomon_cli.main import main; main()"]
START_LIMIT_S = 60.0
STACK = """
version: 1.0
provider: {{name: openfaas, gateway: {url}}}
functions:
  env:
    image: functions/alpine:latest
    fprocess: env
    environment: {{FROM_FILE: 0644, FLAG: yes}}
    labels: {{team: 1.0}}
    annotations:
      note: |
        {{"a": [1, 2]}}
  shout:
    image: functions/alpine:latest
    fprocess: tr a-z A-Z
"""
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cli")


@pytest.fixture(scope="module")
def environment(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OPENFAAS_") and name != "CI"}
    return {**kept, "HOME": str(home)}


@pytest.fixture(scope="module")
def gateway(home: Path, environment: dict[str, str]) -> Iterator[str]:
    command = [*GNOMON, "serve", "--port", "0", "--state", str(home / "state")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=home) as server:
        assert server.stdout is not None
        try:
            readable, _, _ = select.select([server.stdout], [], [], START_LIMIT_S)
            found = re.search(r"http://[0-9.:]*\d", server.stdout.readline()) if readable else None
            assert found, f"gnomon serve said nothing within {START_LIMIT_S} s"
            yield found[0]
        finally:
            server.send_signal(signal.SIGINT)
            try:
                server.wait(30)
            except subprocess.TimeoutExpired:
                server.kill()


@pytest.fixture(params=["gnomon", pytest.param("faas-cli", marks=pytest.mark.faas_cli)])
def tool(request: pytest.FixtureRequest, gateway: str, home: Path, environment: dict[str, str]) -> Iterator[Run]:
    """Runs a command of the tool with the gateway named by OPENFAAS_URL; it must succeed unless `fails`."""
    command = GNOMON
    if request.param == "faas-cli":
        path = shutil.which("faas-cli")
        if path is None:
            pytest.skip("no faas-cli on PATH")
        command = [path]
    (home / "functions.yml").write_text(STACK.format(url=gateway))

    def run(*args: str, stdin: str = "", fails: bool = False) -> subprocess.CompletedProcess[str]:
        variables = {**environment, "OPENFAAS_URL": gateway}
        result = subprocess.run(
            [*command, *args], input=stdin, capture_output=True, text=True, cwd=home, env=variables, timeout=60, check=False
        )
        assert (result.returncode != 0) == fails, result.stdout + result.stderr
        return result

    yield run
    subprocess.run(
        [*GNOMON, "remove", "-f", "functions.yml", "-g", gateway], cwd=home, env=environment, capture_output=True, check=False
    )


def test_deploy_list_describe_invoke_remove(tool: Run, home: Path, gateway: str, environment: dict[str, str]) -> None:
    tool("deploy", "-f", "functions.yml")
    tool("ready", "env")
    assert "env" in tool("list").stdout
    answer = tool("invoke", "env", "--query", "testing=1", stdin="x").stdout.splitlines()
    assert {"FROM_FILE=0644", "FLAG=yes", "Http_Method=POST", "Http_Query=testing=1"} <= set(answer)
    assert tool("invoke", "shout", stdin="hello").stdout.endswith("HELLO")
    described = tool("describe", "env").stdout
    assert re.search(r"Status: +Ready", described)
    assert "functions/alpine:latest" in described
    listed = subprocess.run(
        [*GNOMON, "list", "--json", "-g", gateway], cwd=home, env=environment, capture_output=True, text=True, check=True
    )
    env = next(function for function in json.loads(listed.stdout) if function["name"] == "env")
    assert env["labels"]["team"] == "1.0"
    assert env["annotations"]["note"] == '{"a": [1, 2]}\n'
    tool("remove", "-f", "functions.yml")
    assert "shout" not in tool("list").stdout
    tool("describe", "env", fails=True)


def test_a_second_deploy_updates(tool: Run) -> None:
    tool("deploy", "-f", "functions.yml", "--filter", "env")
    tool("deploy", "-f", "functions.yml", "--filter", "env", "-e", "ADDED=1")
    eventually(lambda: "ADDED=1" in tool("invoke", "env", stdin="x").stdout)


def test_secrets(tool: Run) -> None:
    tool("secret", "create", "api-key", "--from-literal", "one")
    assert "api-key" in tool("secret", "list").stdout
    tool("secret", "update", "api-key", "--from-literal", "two")
    tool(
        "deploy",
        "--image",
        "functions/alpine:latest",
        "--name",
        "env",
        "--fprocess",
        "cat /var/openfaas/secrets/api-key",
        "--secret",
        "api-key",
    )
    eventually(lambda: tool("invoke", "env", stdin="x").stdout.endswith("two"))
    tool("remove", "env")
    tool("secret", "remove", "api-key")
    assert "api-key" not in tool("secret", "list").stdout


def test_logs(tool: Run) -> None:
    tool("deploy", "-f", "functions.yml", "--filter", "shout")
    tool("invoke", "shout", stdin="hello")
    eventually(lambda: "Wrote 5 Bytes" in tool("logs", "shout", "--tail=false").stdout)


def test_the_gateway_itself(tool: Run) -> None:
    tool("ready")
    assert "openfaas-fn" in tool("namespaces").stdout
    assert "gnomon" in tool("version", *(["--warn-update=false"] if _is_faas_cli(tool) else [])).stdout


def test_an_unknown_image_is_refused_with_the_reason(tool: Run) -> None:
    result = tool("deploy", "--image", "nobody/knows:latest", "--name", "unknown", fails=True)
    assert "nobody/knows" in result.stdout + result.stderr


def test_up_builds_a_handler_without_docker(tool: Run, home: Path, gateway: str) -> None:
    if not (home / "template").is_symlink():
        (home / "template").symlink_to(ROOT / "template")
    (home / "greet").mkdir(exist_ok=True)
    (home / "greet" / "handler.py").write_text('def handle(event, context):\n    return "Hello, " + event.body.decode()\n')
    (home / "greet" / "requirements.txt").write_text("")
    (home / "greet.yml").write_text(
        f"version: 1.0\nprovider: {{name: openfaas, gateway: {gateway}}}\n"
        "functions:\n  greet: {lang: gnomon-body, handler: ./greet, image: gnomon/greet:latest, fprocess: serve}\n"
    )
    secret = str(home / "state" / "payload-secret")
    tool("up", "-f", "greet.yml", "--remote-builder", gateway, "--payload-secret", secret)
    tool("ready", "greet")
    assert tool("invoke", "greet", stdin="Ada").stdout.endswith("Hello, Ada")
    tool("remove", "-f", "greet.yml")


def _is_faas_cli(tool: Run) -> bool:
    return "serve" not in tool("--help").stdout.split()
