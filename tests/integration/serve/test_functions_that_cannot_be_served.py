"""Functions that are stored and cannot be served after a restart: what a user sees of them, and every way out."""

from __future__ import annotations

import json

from tests.integration.serve.conftest import Serving
from tests.waiting import eventually

NAMES = ["changed", "mended", "removed"]


def call(serving: Serving, name: str) -> tuple[int, bytes]:
    answer = serving.call("POST", f"/function/{name}", b"hello")
    return answer.status, answer.data


def code(status_and_body: tuple[int, bytes]) -> tuple[int, str]:
    status, body = status_and_body
    return status, json.loads(body)["error"]["code"]


def test_a_function_without_its_secret_is_known_and_served_again_changed_or_removed(serving: Serving) -> None:
    assert serving.call("POST", "/system/secrets", {"name": "key", "value": "v"}).status == 202
    for name in NAMES:
        assert serving.deploy(name, secrets=["key"]).status == 202
    assert {call(serving, name) for name in NAMES} == {(200, b"hello")}
    before = {name: serving.status(name)["createdAt"] for name in NAMES}
    assert serving.call("DELETE", "/system/secrets", {"name": "key"}).status == 202
    assert serving.stop() == 0
    serving.start()

    listed = serving.call("GET", "/system/functions").json()
    assert [(one["name"], one["availableReplicas"], one["secrets"]) for one in listed] == [(name, 0, ["key"]) for name in NAMES]
    assert {name: serving.status(name)["createdAt"] for name in NAMES} == before
    assert serving.call("GET", "/gnomon/functions/mended").json()["bodies"] == []
    assert serving.call("GET", "/gnomon/functions/mended/decisions").json() == []
    [line] = serving.call("GET", "/system/logs?name=mended&follow=false").data.splitlines()
    assert "secret 'key' is not in namespace" in json.loads(line)["text"]
    refused = serving.call("POST", "/function/mended", b"hello")
    assert code((refused.status, refused.data)) == (503, "function_not_served")
    assert "Retry-After" in refused.headers
    assert serving.call("POST", "/v2/models/mended/infer", {"inputs": []}).status == 503, "what is temporary is no 404"
    assert b"key" not in refused.data, "who may call a function need not know of its secrets"
    scaled = serving.call("POST", "/system/scale-function/mended", {"serviceName": "mended", "replicas": 1})
    assert code((scaled.status, scaled.data)) == (503, "function_not_served")
    again = serving.deploy("mended", secrets=["key"])
    assert code((again.status, again.data)) == (409, "function_exists")

    assert serving.call("DELETE", "/system/functions", {"functionName": "removed"}).status == 202
    assert code(call(serving, "removed")) == (404, "function_not_found")
    refused = serving.deploy("changed", method="PUT", secrets=["key"])
    assert code((refused.status, refused.data)) == (400, "secret_not_found")
    assert serving.deploy("changed", method="PUT").status == 202
    assert call(serving, "changed") == (200, b"hello")
    assert serving.status("changed")["createdAt"] == before["changed"]

    assert serving.call("POST", "/system/secrets", {"name": "key", "value": "v"}).status == 202
    eventually(lambda: call(serving, "mended") == (200, b"hello"))
    assert [one["name"] for one in serving.call("GET", "/system/functions").json()] == ["changed", "mended"]
    assert serving.stop() == 0
    serving.start()
    assert [call(serving, name)[0] for name in NAMES] == [200, 200, 404]


def test_asynchronous_calls_wait_for_a_function_that_cannot_be_served(serving: Serving) -> None:
    assert serving.call("POST", "/system/secrets", {"name": "key", "value": "v"}).status == 202
    assert serving.deploy("later", secrets=["key"]).status == 202
    assert serving.call("DELETE", "/system/secrets", {"name": "key"}).status == 202
    assert serving.stop() == 0
    serving.start()
    assert serving.call("POST", "/async-function/later", b"hello").status == 202
    assert serving.call("POST", "/system/secrets", {"name": "key", "value": "v"}).status == 202
    eventually(lambda: serving.status("later")["invocationCount"] == 1)
