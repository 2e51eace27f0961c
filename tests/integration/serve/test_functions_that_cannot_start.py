"""Functions that cannot start or be served."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.integration.serve.conftest import GNOMON, ROOT, Serving
from tests.waiting import eventually

STACK = """
version: 1.0
provider: {{name: openfaas, gateway: "{url}"}}
functions:
  broken: {{lang: gnomon-body, handler: ./broken, image: "ada/broken:1", fprocess: serve}}
"""
GOOD = "def handle(event, context):\n    return {'statusCode': 200, 'body': 'mended'}\n"
BROKEN = {
    "import_error": ("import no_such_module\n" + GOOD, "ModuleNotFoundError: No module named 'no_such_module'"),
    "no_handle": ("def other():\n    pass\n", "handler.py defines neither handle(event, context) nor handle_batch"),
}


def gnomon(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """The command, in a user's folder."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OPENFAAS_")}
    environment = {**kept, "HOME": str(folder)}
    return subprocess.run([*GNOMON, *args], cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False)


def up(serving: Serving, folder: Path, handler: str, *options: str) -> subprocess.CompletedProcess[str]:
    """`gnomon up` of a function with this handler."""
    (folder / "broken").mkdir(exist_ok=True)
    (folder / "broken" / "handler.py").write_text(handler)
    (folder / "stack.yml").write_text(STACK.format(url=serving.url))
    if not (folder / "template").exists():
        (folder / "template").symlink_to(ROOT / "templates")
    return gnomon(folder, "up", "--payload-secret", str(serving.state / "payload-secret"), "--quiet", *options)


def refusal(serving: Serving, name: str) -> tuple[int, str, str]:
    """Status, code and message of a call."""
    answer = serving.call("POST", f"/function/{name}", b"hello")
    error = json.loads(answer.data)["error"]
    assert int(answer.headers["Retry-After"]) >= 1
    return answer.status, error["code"], error["message"]


@pytest.mark.parametrize("kind", BROKEN)
def test_up_says_why_a_handler_cannot_start_and_so_do_calls_describe_and_readiness(
    serving: Serving, tmp_path: Path, kind: str
) -> None:
    handler, why = BROKEN[kind]
    assert serving.call("GET", "/v2/health/ready").status == 200
    result = up(serving, tmp_path, handler)
    assert result.returncode == 1
    assert "Error: broken: The function cannot start:" in result.stderr
    assert why in result.stderr
    assert "Deployed" not in result.stdout
    status, code, message = refusal(serving, "broken")
    assert (status, code) == (503, "function_cannot_start")
    assert why in message
    # faas-cli shows a function's annotations.
    assert why in serving.status("broken")["annotations"]["status.gnomon/problem"]
    assert why in gnomon(tmp_path, "ready", "broken", "--attempts", "1", "-g", serving.url).stderr
    assert why in gnomon(tmp_path, "describe", "broken", "-g", serving.url).stdout
    assert serving.call("GET", "/v2/health/ready").status == 503

    result = up(serving, tmp_path, GOOD)
    assert (result.returncode, result.stderr.count("Error")) == (0, 0), result.stderr
    assert "Deployed. URL:" in result.stdout
    answer = serving.call("POST", "/function/broken", b"hello")
    assert (answer.status, answer.data) == (200, b"mended")
    assert "status.gnomon/problem" not in serving.status("broken").get("annotations", {})
    assert serving.call("GET", "/v2/health/ready").status == 200


def test_no_wait_deploys_and_asks_nothing(serving: Serving, tmp_path: Path) -> None:
    result = up(serving, tmp_path, BROKEN["import_error"][0], "--no-wait")
    assert (result.returncode, result.stderr.count("Error")) == (0, 0), result.stderr
    assert "Deployed. URL:" in result.stdout


def test_a_broken_update_is_told_while_the_version_before_serves_on(serving: Serving, tmp_path: Path) -> None:
    assert up(serving, tmp_path, GOOD).returncode == 0
    result = up(serving, tmp_path, BROKEN["import_error"][0])
    assert result.returncode == 1
    assert "no_such_module" in result.stderr
    answer = serving.call("POST", "/function/broken", b"hello")
    assert (answer.status, answer.data) == (200, b"mended")


def test_no_room_for_any_instance_is_told_by_deploy_calls_and_logs(serving: Serving, tmp_path: Path) -> None:
    deploy = ["deploy", "--image", "functions/alpine", "--name", "huge", "--fprocess", "cat", "--cpu-request", "64"]
    result = gnomon(tmp_path, *deploy, "-g", serving.url)
    assert result.returncode == 1
    assert "huge: An instance needs 64 cores" in result.stderr
    assert "(no_capacity)" in result.stderr
    status, code, message = refusal(serving, "huge")
    assert (status, code) == (503, "no_capacity")
    assert "needs 64 cores" in message
    log = serving.call("GET", "/system/logs?name=huge&follow=false").data
    assert log.count(b"no instance can be created: ") == 1


def test_deploy_says_how_many_of_the_instances_found_no_room(serving: Serving, tmp_path: Path) -> None:
    (tmp_path / "many.yml").write_text(
        f"provider: {{name: openfaas, gateway: '{serving.url}'}}\n"
        "functions:\n  many:\n    image: functions/alpine\n    fprocess: cat\n    requests: {cpu: '3'}\n"
        "    labels: {com.openfaas.scale.min: '5'}\n"
    )
    result = gnomon(tmp_path, "deploy", "-f", "many.yml")
    assert result.returncode == 0, result.stderr
    assert " of 5 instances are ready. An instance needs 3 cores" in result.stdout
    eventually(lambda: serving.status("many")["availableReplicas"] == 2)
    assert "needs 3 cores" in serving.status("many")["annotations"]["status.gnomon/problem"]
    assert serving.call("POST", "/function/many", b"hello").data == b"hello"


NAMES = ["changed", "mended", "removed"]


def call(serving: Serving, name: str) -> tuple[int, bytes]:
    answer = serving.call("POST", f"/function/{name}", b"hello")
    return answer.status, answer.data


def code(status_and_body: tuple[int, bytes]) -> tuple[int, str]:
    status, body = status_and_body
    return status, json.loads(body)["error"]["code"]


def test_a_function_without_its_secret_is_known_and_served_again_changed_or_removed(lone: Serving) -> None:
    assert lone.call("POST", "/system/secrets", {"name": "key", "value": "v"}).status == 202
    for name in NAMES:
        assert lone.deploy(name, secrets=["key"]).status == 202
    assert {call(lone, name) for name in NAMES} == {(200, b"hello")}
    before = {name: lone.status(name)["createdAt"] for name in NAMES}
    assert lone.call("DELETE", "/system/secrets", {"name": "key"}).status == 202
    assert lone.stop() == 0
    lone.start()

    listed = lone.call("GET", "/system/functions").json()
    assert [(row["name"], row["availableReplicas"], row["secrets"]) for row in listed] == [(name, 0, ["key"]) for name in NAMES]
    assert {name: lone.status(name)["createdAt"] for name in NAMES} == before
    assert lone.call("GET", "/gnomon/functions/mended").json()["bodies"] == []
    assert lone.call("GET", "/gnomon/functions/mended/decisions").json() == []
    [line] = lone.call("GET", "/system/logs?name=mended&follow=false").data.splitlines()
    assert "secret 'key' is not in namespace" in json.loads(line)["text"]
    refused = lone.call("POST", "/function/mended", b"hello")
    assert code((refused.status, refused.data)) == (503, "function_not_served")
    assert "Retry-After" in refused.headers
    assert lone.call("POST", "/v2/models/mended/infer", {"inputs": []}).status == 503, "what is temporary is no 404"
    assert b"key" not in refused.data, "who may call a function need not know of its secrets"
    scaled = lone.call("POST", "/system/scale-function/mended", {"serviceName": "mended", "replicas": 1})
    assert code((scaled.status, scaled.data)) == (503, "function_not_served")
    again = lone.deploy("mended", secrets=["key"])
    assert code((again.status, again.data)) == (409, "function_exists")

    assert lone.call("DELETE", "/system/functions", {"functionName": "removed"}).status == 202
    assert code(call(lone, "removed")) == (404, "function_not_found")
    refused = lone.deploy("changed", method="PUT", secrets=["key"])
    assert code((refused.status, refused.data)) == (400, "secret_not_found")
    assert lone.deploy("changed", method="PUT").status == 202
    assert call(lone, "changed") == (200, b"hello")
    assert lone.status("changed")["createdAt"] == before["changed"]

    assert lone.call("POST", "/system/secrets", {"name": "key", "value": "v"}).status == 202
    eventually(lambda: call(lone, "mended") == (200, b"hello"))
    assert [row["name"] for row in lone.call("GET", "/system/functions").json()] == ["changed", "mended"]
    assert lone.stop() == 0
    lone.start()
    assert [call(lone, name)[0] for name in NAMES] == [200, 200, 404]


def test_asynchronous_calls_wait_for_a_function_that_cannot_be_served(lone: Serving) -> None:
    assert lone.call("POST", "/system/secrets", {"name": "key", "value": "v"}).status == 202
    assert lone.deploy("later", secrets=["key"]).status == 202
    assert lone.call("DELETE", "/system/secrets", {"name": "key"}).status == 202
    assert lone.stop() == 0
    lone.start()
    assert lone.call("POST", "/async-function/later", b"hello").status == 202
    assert lone.call("POST", "/system/secrets", {"name": "key", "value": "v"}).status == 202
    eventually(lambda: lone.status("later")["invocationCount"] == 1)
