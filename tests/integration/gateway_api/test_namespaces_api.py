"""`/system/namespaces`, as faas-cli and the Go SDK use them."""

from __future__ import annotations

from typing import Any

import pytest


async def test_there_is_always_the_default_one(gateway: Any) -> None:
    assert await gateway.call("GET", "/system/namespaces") == (200, ["openfaas-fn"])
    assert await gateway.call("GET", "/system/namespace/openfaas-fn") == (200, {"name": "openfaas-fn"})


@pytest.mark.parametrize(
    ("path", "body"),
    [("/system/namespace/", {"name": "dev"}), ("/system/namespace/dev", {"name": "dev"}), ("/system/namespace/dev", {})],
)
async def test_one_is_created_by_body_or_path(gateway: Any, path: str, body: Any) -> None:
    assert (await gateway.call("POST", path, {**body, "labels": {"team": "a"}}))[0] == 202
    assert (await gateway.call("GET", "/system/namespaces"))[1] == ["dev", "openfaas-fn"]
    assert await gateway.call("GET", "/system/namespace/dev") == (200, {"name": "dev", "labels": {"team": "a"}})
    status, error = await gateway.call("POST", path, body)
    assert (status, error["error"]["code"]) == (409, "namespace_exists")


async def test_put_replaces_labels_and_annotations(gateway: Any) -> None:
    await gateway.call("POST", "/system/namespace/", {"name": "dev", "labels": {"old": "1"}})
    assert (await gateway.call("PUT", "/system/namespace/dev", {"name": "dev", "annotations": {"new": "2"}}))[0] == 202
    assert (await gateway.call("GET", "/system/namespace/dev"))[1] == {"name": "dev", "annotations": {"new": "2"}}
    assert (await gateway.call("PUT", "/system/namespace/nope", {"name": "nope"}))[0] == 404


async def test_an_empty_one_is_deleted_with_or_without_a_body(gateway: Any) -> None:
    for body in (None, {"name": "dev"}):
        await gateway.call("POST", "/system/namespace/", {"name": "dev"})
        assert (await gateway.call("DELETE", "/system/namespace/dev", body))[0] == 202
        assert (await gateway.call("GET", "/system/namespace/dev"))[0] == 404
    assert (await gateway.call("DELETE", "/system/namespace/dev"))[0] == 404


async def test_one_that_holds_something_stays(gateway: Any) -> None:
    await gateway.call("POST", "/system/namespace/", {"name": "dev"})
    await gateway.deploy("fn", namespace="dev")
    status, error = await gateway.call("DELETE", "/system/namespace/dev")
    assert (status, error["error"]["code"]) == (409, "namespace_not_empty")
    assert "function fn" in error["error"]["message"]
    await gateway.call("DELETE", "/system/functions", {"functionName": "fn", "namespace": "dev"})
    await gateway.call("POST", "/system/secrets", {"name": "token", "namespace": "dev", "value": "x"})
    assert "secret token" in (await gateway.call("DELETE", "/system/namespace/dev"))[1]["error"]["message"]
    assert (await gateway.call("GET", "/system/namespace/dev"))[0] == 200


async def test_nothing_is_put_into_one_while_it_goes(gateway: Any) -> None:
    await gateway.call("POST", "/system/namespace/", {"name": "dev"})
    with gateway.namespaces.using("dev"):
        status, error = await gateway.call("DELETE", "/system/namespace/dev")
    assert (status, error["error"]["code"]) == (409, "namespace_in_use")
    assert (await gateway.call("DELETE", "/system/namespace/dev"))[0] == 202


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
async def test_the_default_one_cannot_be_changed(gateway: Any, method: str) -> None:
    status, error = await gateway.call(method, "/system/namespace/openfaas-fn", {"name": "openfaas-fn"})
    assert (status, error["error"]["code"]) == (400, "default_namespace")


@pytest.mark.parametrize(
    "body",
    [
        {"name": ""},
        {},
        {"name": "a.b"},
        {"name": "A"},
        {"name": "-a"},
        {"name": "a" * 64},
        {"name": 3},
        {"name": "a", "labels": []},
        {"name": "a", "labels": {"x": 1}},
    ],
)
async def test_a_wrong_one_is_400(gateway: Any, body: Any) -> None:
    assert (await gateway.call("POST", "/system/namespace/", body))[0] == 400


async def test_path_and_body_must_agree(gateway: Any) -> None:
    assert (await gateway.call("POST", "/system/namespace/dev", {"name": "prod"}))[0] == 400
