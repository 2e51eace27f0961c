"""Two gateways of ours, one in front of the other: for the one in front, the other is a provider, with real functions."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.integration.adoption.outer_gateway import login_files
from tests.integration.serve.conftest import GNOMON, Serving
from tests.waiting import eventually

# The classic watchdog splits its process at spaces and knows no quotes.
SLOW_CAT = "perl -e select(undef,undef,undef,.1);print<STDIN>"
LOGIN = {"Authorization": "Basic YWRtaW46czNjcmV0"}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Serving, Serving]]:
    """The gateway in front, and the one behind."""
    folder = tmp_path_factory.mktemp("two")
    secrets = login_files(folder)
    behind, front = Serving(folder / "behind" / "state"), Serving(folder / "front" / "state")
    behind.state.parent.mkdir()
    front.state.parent.mkdir()
    behind.start("--basic-auth", "--secrets", secrets)
    try:
        front.start("--platform", "provider", "--provider-url", behind.url, "--provider-credentials", secrets)
        try:
            yield front, behind
        finally:
            front.stop()
    finally:
        behind.stop()
        front.client.clear()
        behind.client.clear()


def ready(front: Serving, name: str, count: int) -> None:
    eventually(lambda: front.status(name).get("availableReplicas", 0) == count, f"{name} never had {count} replicas")


def test_gnomon_deploy_serves_through_both(both: tuple[Serving, Serving], tmp_path: Path) -> None:
    front, behind = both
    stack = tmp_path / "stack.yml"
    stack.write_text(
        f"""
version: 1.0
provider: {{name: openfaas, gateway: {front.url}}}
functions:
  hello:
    image: functions/alpine:latest
    skip_build: true
    fprocess: cat
    annotations: {{gnomon/max-inflight: "1"}}
"""
    )
    command = [*GNOMON, "deploy", "-f", str(stack), "-g", front.url]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert [row["name"] for row in behind.call("GET", "/system/functions", **LOGIN).json()] == ["hello"]
    assert front.call("POST", "/function/hello", b"through both").data == b"through both"
    ready(front, "hello", 1)
    lines = front.call("GET", "/system/logs?name=hello&follow=false").data.splitlines()
    assert any("Forking fprocess" in json.loads(line)["text"] for line in lines)
    assert front.call("DELETE", "/system/functions", {"functionName": "hello"}).status == 202
    assert behind.call("GET", "/system/functions", **LOGIN).json() == []


def test_the_one_behind_scales_and_the_one_in_front_follows(both: tuple[Serving, Serving]) -> None:
    front, _ = both
    labels = {"com.openfaas.scale.max": "4"}
    assert front.deploy("busy", SLOW_CAT, labels=labels, annotations={"gnomon/max-inflight": "1"}).status == 202
    ready(front, "busy", 1)
    assert front.call("POST", "/system/scale-function/busy", {"serviceName": "busy", "replicas": 3}).status == 202
    ready(front, "busy", 3)

    def call(number: int) -> tuple[int, bytes]:
        answer = front.call("POST", "/function/busy", b"%d" % number)
        return answer.status, answer.data

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(call, range(100)))
    assert answers == [(200, b"%d" % number) for number in range(100)]
    slots = front.call("GET", "/gnomon/functions/busy").json()["bodies"]
    assert 1 <= len(slots) <= 4
    assert front.call("DELETE", "/system/functions", {"functionName": "busy"}).status == 202


def test_a_function_that_went_to_zero_behind_is_woken_from_the_front(both: tuple[Serving, Serving]) -> None:
    front, behind = both
    zero = {"com.openfaas.scale.zero": "true", "com.openfaas.scale.zero-duration": "1s"}
    assert front.deploy("sleepy", labels=zero).status == 202
    assert front.call("POST", "/function/sleepy", b"good night").data == b"good night"
    described = "/system/function/sleepy"
    eventually(lambda: behind.call("GET", described, **LOGIN).json()["availableReplicas"] == 0, "it never went to sleep")
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda number: front.call("POST", "/function/sleepy", b"%d" % number).data, range(16)))
    assert answers == [b"%d" % number for number in range(16)]
    assert front.call("DELETE", "/system/functions", {"functionName": "sleepy"}).status == 202


def test_an_error_of_the_one_behind_comes_with_its_words(both: tuple[Serving, Serving]) -> None:
    front, _ = both
    refused = front.call("POST", "/system/functions", {"service": "x", "image": "nobody/knows:1"})
    assert refused.status == 400
    error = refused.json()["error"]
    assert error["code"] == "provider_refused"
    assert "nobody/knows" in error["message"]
    assert "functions/alpine" in error["hint"]
