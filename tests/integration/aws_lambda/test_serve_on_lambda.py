"""`gnomon serve --platform lambda`: the gateway here, the functions there, and the OpenFaaS API in front."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gnomon_platforms.aws_lambda.testing.account import Account

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def gateway(aws: Account, tmp_path: Path) -> Iterator[tuple[str, int]]:
    command = [str(Path(sys.executable).with_name("gnomon")), "serve"]
    options = ["--platform", "lambda", "--lambda-role", aws.role, "--lambda-bucket", aws.bucket, "--port", "0"]
    process = subprocess.Popen(
        [*command, *options, "--state", str(tmp_path / "state")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **aws.variables},
    )
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        found = re.search(r"serves on http://([\d.]+):(\d+)", line)
        if found is not None:
            break
    else:
        pytest.fail("".join(lines))
    yield found.group(1), int(found.group(2))
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    process.stdout.close()
    assert aws.functions() == [], "what was deployed is still on Lambda"


def ask(gateway: tuple[str, int], method: str, path: str, body: Any = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(*gateway, timeout=60)
    data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    connection.request(method, path, data, {"Content-Type": "application/json"} if data is not body else {})
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def test_deploy_invoke_scale_and_remove(gateway: tuple[str, int], aws: Account) -> None:
    deployment = {
        "service": "echo",
        "image": "functions/alpine:latest",
        "envProcess": "cat",
        "annotations": {"gnomon/memory-mb": "512"},
    }
    status, text = ask(gateway, "POST", "/system/functions", deployment)
    assert status in (200, 202), text
    assert ask(gateway, "POST", "/function/echo", b"over there") == (200, b"over there")
    assert aws.functions() == ["gnomon-echo-openfaas-fn-zip"]
    found = aws.client("lambda").get_function(FunctionName="gnomon-echo-openfaas-fn-zip")["Configuration"]
    assert (found["MemorySize"], found["Role"]) == (512, aws.role)

    large = os.urandom(7_000_000)
    assert ask(gateway, "POST", "/function/echo", large) == (200, large)

    assert ask(gateway, "POST", "/system/scale-function/echo", {"service": "echo", "replicas": 3})[0] == 202
    deadline_s = time.monotonic() + 30
    available = 0
    while available < 3 and time.monotonic() < deadline_s:
        available = json.loads(ask(gateway, "GET", "/system/function/echo")[1])["availableReplicas"]
        time.sleep(0.1)
    assert available == 3
    assert ask(gateway, "DELETE", "/system/functions", {"functionName": "echo"})[0] == 202


def test_without_credentials_one_line_says_what_to_do(aws: Account, tmp_path: Path) -> None:
    without = {name: value for name, value in aws.variables.items() if "KEY" not in name}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")} | without
    result = subprocess.run(
        [Path(sys.executable).with_name("gnomon"), "serve", "--platform", "lambda", "--lambda-role", aws.role, "--port", "0",
         "--state", str(tmp_path / "state")],
        capture_output=True, text=True, env=environment, timeout=60, check=False,
    )  # fmt: skip
    assert result.returncode == 1
    assert "There are no AWS credentials" in result.stderr
    assert "aws configure" in result.stderr
    assert "Traceback" not in result.stderr


def test_without_a_role_one_line_names_the_option(tmp_path: Path) -> None:
    result = subprocess.run(
        [Path(sys.executable).with_name("gnomon"), "serve", "--platform", "lambda", "--state", str(tmp_path / "state")],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert result.returncode == 1
    assert "--lambda-role" in result.stderr
