"""Functions, namespaces and system routes."""

from __future__ import annotations

import asyncio
import json
import platform
from typing import Any

import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionSpec


async def test_nothing_deployed_is_an_empty_list(gateway: Any) -> None:
    assert await gateway.call("GET", "/system/functions") == (200, [])


async def test_deployment_reads_back_as_it_was_sent(gateway: Any) -> None:
    sent = {
        "service": "fn",
        "image": "docker.io/functions/alpine:latest",
        "namespace": "openfaas-fn",
        "envProcess": "env",
        "labels": {"canary": "true"},
        "annotations": {"some-json": '{\n\t"a": {"b": ["é"] }\n }'},
        "limits": {"memory": "5Mi", "cpu": "100m"},
    }
    assert (await gateway.call("POST", "/system/functions", sent))[0] == 202
    status, (listed,) = await gateway.call("GET", "/system/functions?namespace=openfaas-fn")
    assert status == 200
    assert listed == {
        "name": "fn",
        "image": "docker.io/functions/alpine:latest",
        "namespace": "openfaas-fn",
        "envProcess": "env",
        "labels": {"canary": "true", "faas_function": "fn"},
        "annotations": sent["annotations"],
        "limits": {"memory": "5Mi", "cpu": "100m"},
        "invocationCount": 0,
        "replicas": 1,
        "availableReplicas": 1,
        "createdAt": "2023-11-14T22:13:20.500000Z",
    }
    assert await gateway.call("GET", "/system/function/fn") == (200, listed)


async def test_nulls_are_absent_and_empty_objects_stay(gateway: Any) -> None:
    await gateway.deploy("fn", labels=None, annotations={}, envVars=None, requests=None, secrets=None, network="func_functions")
    _, found = await gateway.call("GET", "/system/function/fn")
    assert found["labels"] == {"faas_function": "fn"}
    assert found["annotations"] == {}
    assert found.keys().isdisjoint(
        {"envVars", "requests", "limits", "secrets", "constraints", "readOnlyRootFilesystem", "network"}
    )


async def test_faas_cli_deploys_with_put_then_post(gateway: Any) -> None:
    document = {"service": "fn", "image": "functions/alpine:latest"}
    assert (await gateway.call("PUT", "/system/functions", document))[0] == 404
    assert (await gateway.call("POST", "/system/functions", document))[0] == 202
    assert (await gateway.call("PUT", "/system/functions", {**document, "image": "other"}))[0] == 202
    assert (await gateway.call("GET", "/system/function/fn"))[1]["image"] == "other"


async def test_deploying_a_name_twice_is_a_conflict(gateway: Any) -> None:
    await gateway.deploy("fn")
    status, error = await gateway.call("POST", "/system/functions", {"service": "fn", "image": "i"})
    assert (status, error["error"]["code"]) == (409, "function_exists")


async def test_a_removed_function_is_gone_and_its_name_free(gateway: Any) -> None:
    await gateway.deploy("fn")
    assert (await gateway.call("DELETE", "/system/functions", {"functionName": "fn", "namespace": "openfaas-fn"}))[0] == 202
    assert (await gateway.call("GET", "/system/function/fn"))[0] == 404
    assert (await gateway.call("DELETE", "/system/functions", {"functionName": "fn"}))[0] == 404
    await gateway.deploy("fn")


@pytest.mark.parametrize("path", ["/system/function/fn.staging", "/system/function/fn?namespace=staging"])
async def test_a_function_is_found_in_its_namespace(gateway: Any, path: str) -> None:
    await gateway.call("POST", "/system/namespace/", {"name": "staging"})
    await gateway.deploy("fn", namespace="staging")
    status, found = await gateway.call("GET", path)
    assert (status, found["namespace"]) == (200, "staging")
    assert (await gateway.call("GET", "/system/function/fn"))[0] == 404
    assert (await gateway.call("GET", "/system/functions"))[1] == []


async def test_usage_is_there_only_when_asked_for(gateway: Any) -> None:
    await gateway.deploy("fn")
    assert "usage" not in (await gateway.call("GET", "/system/function/fn"))[1]
    assert (await gateway.call("GET", "/system/function/fn?usage=1"))[1]["usage"] == {"cpu": 0.0, "totalMemoryBytes": 1 << 20}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/system/scale-function/fn?namespace=staging", {"serviceName": "fn", "replicas": 3}),
        ("/system/scale-function/fn", {"serviceName": "fn", "replicas": 3, "namespace": "staging"}),
        ("/system/scale-function/fn.staging", {"replicas": 3}),
    ],
)
async def test_scaling_takes_the_namespace_from_query_body_or_name(gateway: Any, path: str, body: dict[str, Any]) -> None:
    await gateway.call("POST", "/system/namespace/", {"name": "staging"})
    await gateway.deploy("fn", namespace="staging")
    assert (await gateway.call("POST", path, body))[0] == 202
    assert (await gateway.call("GET", "/system/function/fn.staging"))[1]["replicas"] == 3


async def test_scaling_to_zero_shows_zero(gateway: Any) -> None:
    await gateway.deploy("fn")
    assert (await gateway.call("POST", "/system/scale-function/fn", {"replicas": 0}))[0] == 202
    assert (await gateway.call("GET", "/system/function/fn"))[1]["replicas"] == 0


@pytest.mark.parametrize("replicas", [None, -1, 1.5, "2", True, 10**9, [], {}])
async def test_a_number_of_replicas_that_is_none_is_refused(gateway: Any, replicas: Any) -> None:
    await gateway.deploy("fn")
    status, error = await gateway.call("POST", "/system/scale-function/fn", {"replicas": replicas})
    assert (status, error["error"]["code"]) == (400, "invalid_field")


async def test_scaling_an_unknown_function_is_404(gateway: Any) -> None:
    assert (await gateway.call("POST", "/system/scale-function/nope", {"replicas": 1}))[0] == 404


WRONG_DEPLOYMENTS = {
    "an empty body": b"",
    "no JSON": b"{",
    "an array": b"[]",
    "a text": b'"fn"',
    "not UTF-8": b'{"service": "\xff"}',
    "half a character": b'{"service": "fn", "image": "i", "annotations": {"a": "\\ud800"}}',
    "very deep": b"[" * 100_000,
    "an endless number": b'{"service": ' + b"1" * 5000 + b"}",
    "no name": b'{"image": "i"}',
    "no image": b'{"service": "fn"}',
    "a name with a dot": b'{"service": "fn.x", "image": "i"}',
    "a name with a slash": b'{"service": "../fn", "image": "i"}',
    "a long name": b'{"service": "' + b"a" * 64 + b'", "image": "i"}',
    "a number as name": b'{"service": 1, "image": "i"}',
    "labels that are a list": b'{"service": "fn", "image": "i", "labels": []}',
    "a number as label": b'{"service": "fn", "image": "i", "labels": {"a": 1}}',
    "secrets that are a text": b'{"service": "fn", "image": "i", "secrets": "a"}',
    "memory that is none": b'{"service": "fn", "image": "i", "limits": {"memory": "much"}}',
    "an unknown setting": b'{"service": "fn", "image": "i", "annotations": {"gnomon/nope": "1"}}',
    "a setting out of range": b'{"service": "fn", "image": "i", "annotations": {"gnomon/max-batch": "0"}}',
    "a retry rule that is none": b'{"service": "fn", "image": "i", "annotations": {"com.openfaas.retry.codes": "all"}}',
}


@pytest.mark.parametrize("method", ["POST", "PUT"])
@pytest.mark.parametrize("body", WRONG_DEPLOYMENTS.values(), ids=WRONG_DEPLOYMENTS.keys())
async def test_a_wrong_deployment_is_400_in_our_json(gateway: Any, method: str, body: bytes) -> None:
    async with gateway.client.request(method, gateway.url + "/system/functions", data=body) as response:
        assert response.status == 400
        assert response.headers["X-OpenFaaS-Internal"] == "gnomon"
        error = json.loads(await response.read())["error"]
        assert error["code"] in {"invalid_json", "invalid_deployment", "invalid_name", "invalid_setting", "unknown_setting"}
        assert error["message"]
    assert gateway.functions.deployed == {}


@pytest.mark.parametrize(
    "body", [{}, {"functionName": ""}, {"functionName": 3}, {"functionName": None}, {"functionName": "fn", "namespace": 1}]
)
async def test_a_wrong_removal_is_400(gateway: Any, body: Any) -> None:
    assert (await gateway.call("DELETE", "/system/functions", body))[0] == 400


async def test_an_unknown_namespace_is_404_and_says_which_there_are(gateway: Any) -> None:
    for method, path, body in (
        ("POST", "/system/functions", {"service": "fn", "image": "i", "namespace": "nope"}),
        ("PUT", "/system/functions", {"service": "fn", "image": "i", "namespace": "nope"}),
        ("GET", "/system/functions?namespace=nope", None),
    ):
        status, error = await gateway.call(method, path, body)
        assert (status, error["error"]["code"]) == (404, "namespace_not_found")
        assert "openfaas-fn" in error["error"]["hint"]


async def test_a_body_over_the_limit_is_413_without_being_read(gateway: Any) -> None:
    head = b"POST /system/functions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1048577\r\n\r\n"
    assert (await gateway.raw(head)).startswith(b"HTTP/1.1 413 ")


async def test_a_chunked_body_over_the_limit_is_413(gateway: Any) -> None:
    head = b"POST /system/functions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    assert (await gateway.raw(head + chunk * 17)).startswith(b"HTTP/1.1 413 ")


async def test_a_chunked_deployment_is_taken(gateway: Any) -> None:
    async def parts() -> Any:
        for part in (b'{"service": "fn",', b' "image": "i"}'):
            yield part

    async with gateway.client.post(gateway.url + "/system/functions", data=parts()) as response:
        assert response.status == 202


async def test_a_fault_of_ours_is_500_without_its_insides(gateway: Any, caplog: pytest.LogCaptureFixture) -> None:
    gateway.functions.fault = RuntimeError("the insides")
    status, error = await gateway.call("POST", "/system/functions", {"service": "fn", "image": "i"})
    assert (status, error["error"]["code"]) == (500, "internal_error")
    assert "the insides" not in json.dumps(error)
    assert "the insides" in caplog.text


async def test_request_that_the_end_of_the_server_cuts_off_is_told_so(gateway: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    deploying = asyncio.Event()

    async def deploy(_: FunctionSpec) -> None:
        deploying.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(gateway.functions, "deploy", deploy)
    document = {"service": "fn", "image": "functions/alpine:latest"}
    answer = asyncio.ensure_future(gateway.call("POST", "/system/functions", document))
    await deploying.wait()
    for request in gateway.server.tasks:
        request.cancel()  # as uvicorn does when the time to answer is over
    status, error = await answer
    assert (status, error["error"]["code"]) == (503, "stopping")


async def test_a_refusal_of_the_service_reaches_the_client_as_it_is(gateway: Any) -> None:
    gateway.functions.fault = GnomonError(503, "no_capacity", "Full.", "Wait.", retry_after_s=3)
    async with gateway.client.post(gateway.url + "/system/functions", json={"service": "fn", "image": "i"}) as response:
        assert (response.status, response.headers["Retry-After"]) == (503, "3")
        assert await response.json() == {"error": {"code": "no_capacity", "message": "Full.", "hint": "Wait."}}


async def test_decisions_are_newest_first_with_their_reasons(gateway: Any) -> None:
    await gateway.deploy("fn")
    status, found = await gateway.call("GET", "/gnomon/functions/fn/decisions?limit=2")
    assert status == 200
    assert [record["reason"] for record in found] == ["reason 4", "reason 3"]
    assert found[0]["actions"] == [{"action": "CreateBody", "cores": 2, "node": None}]
    assert (found[0]["at"], found[0]["policy"], found[0]["desired"]) == ("2023-11-14T22:13:24Z", "fixed", 4)
    assert len((await gateway.call("GET", "/gnomon/functions/fn.openfaas-fn/decisions"))[1]) == 5
    assert (await gateway.call("GET", "/gnomon/functions/nope/decisions"))[0] == 404


async def test_bodies_and_shadows_are_shown_with_what_they_do_together(gateway: Any) -> None:
    await gateway.deploy("fn")
    status, found = await gateway.call("GET", "/gnomon/functions/fn")
    assert status == 200
    assert (found["name"], found["scheduling"], found["profile"]) == ("fn", "adaptive", None)
    assert found["scaling_in_force"] == {"policy": "fixed", "reason": "reason 4", "error": ""}
    [body], [shadow] = found["bodies"], found["shadows"]
    assert (body["id"], body["cores"], body["max_batch"], body["in_flight"], body["shadow"]) == ("b-1", 2, 8, 8, "s-1")
    assert (shadow["body"], shadow["cores"], shadow["blocks"], shadow["split"]) == ("b-1", 4, [1, 2], [0, 1, 1, 2])
    nothing = {"batches": 0, "offloaded_samples": 0, "misses": 0, "hand_overs": {}}
    assert found["pairs"] == nothing | {"waited_s": 0.0, "predicted_s": 0.0, "measured_s": 0.0}
    assert (await gateway.call("GET", "/gnomon/functions/nope"))[0] == 404
    assert (await gateway.call("POST", "/gnomon/functions/fn"))[0] == 405


@pytest.mark.parametrize("limit", ["0", "-1", "x", "1001", "", "1.5"])
async def test_a_limit_that_is_none_is_refused(gateway: Any, limit: str) -> None:
    await gateway.deploy("fn")
    assert (await gateway.call("GET", f"/gnomon/functions/fn/decisions?limit={limit}"))[0] == 400


async def test_policies_are_listed_with_what_they_do(gateway: Any) -> None:
    assert (await gateway.call("GET", "/gnomon/policies")) == (
        200,
        {
            "scaling": [{"name": "fixed", "description": "A fixed number."}, {"name": "kpa", "description": "Knative's."}],
            "scheduling": [{"name": "immediate", "description": "At once."}],
        },
    )


async def test_misspelt_setting_is_refused_with_a_suggestion(gateway: Any) -> None:
    for field, key, meant in (
        ("labels", "com.openfaas.scale.mim", "com.openfaas.scale.min"),
        ("annotations", "gnomo/max-batch", "gnomon/max-batch"),
    ):
        for method in ("PUT", "POST"):
            status, answer = await gateway.call(method, "/system/functions", {"service": "fn", "image": "i", field: {key: "2"}})
            assert (status, answer["error"]["code"]) == (400, "unknown_setting")
            assert meant in answer["error"]["hint"]


async def test_more_replicas_than_a_functions_maximum_are_refused(gateway: Any) -> None:
    await gateway.deploy("fn", labels={"com.openfaas.scale.max": "4"})
    status, answer = await gateway.call("POST", "/system/scale-function/fn", {"replicas": 99})
    assert (status, answer["error"]["code"]) == (400, "above_maximum")
    assert "at most 4" in answer["error"]["message"]
    assert (await gateway.call("POST", "/system/scale-function/fn", {"replicas": 4}))[0] == 202


async def test_a_newcomer_finds_the_routes_at_the_root(gateway: Any) -> None:
    status, page = await gateway.call("GET", "/")
    assert status == 200
    assert "POST /function/NAME" in str(page)
    status, answer = await gateway.call("GET", "/ui/")
    assert (status, answer["error"]["hint"]) == (404, "GET / lists the routes.")


async def test_default_namespace_is_always_there(gateway: Any) -> None:
    assert await gateway.call("GET", "/system/namespaces") == (200, ["openfaas-fn"])
    assert await gateway.call("GET", "/system/namespace/openfaas-fn") == (200, {"name": "openfaas-fn"})


@pytest.mark.parametrize(
    ("path", "body"),
    [("/system/namespace/", {"name": "dev"}), ("/system/namespace/dev", {"name": "dev"}), ("/system/namespace/dev", {})],
)
async def test_namespace_is_created_by_body_or_path(gateway: Any, path: str, body: Any) -> None:
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


async def test_namespace_with_functions_is_not_removed(gateway: Any) -> None:
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


async def test_info_has_the_gateways_shape_with_nothing_empty(gateway: Any) -> None:
    status, info = await gateway.call("GET", "/system/info")
    assert status == 200
    assert info["provider"]["provider"] == info["provider"]["name"] == "gnomon"
    assert info["provider"]["orchestration"] == "local"
    for version in (info["version"], info["provider"]["version"]):
        assert (version["release"], version["sha"]) == ("0.1.0", "abc123")
        assert version["commit_message"]
    assert info["arch"] == platform.machine()


async def test_health_is_for_get_and_head(gateway: Any) -> None:
    for method in ("GET", "HEAD"):
        assert (await gateway.call(method, "/healthz"))[0] == 200
    gateway.healthy[0] = False
    async with gateway.client.get(gateway.url + "/healthz") as response:
        assert (response.status, response.headers["Retry-After"]) == (503, "1")


async def test_metrics_count_the_control_routes_themselves(gateway: Any) -> None:
    await gateway.deploy("fn")
    async with gateway.client.get(gateway.url + "/metrics") as response:
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        page = await response.text()
    assert 'gateway_service_count{function_name="fn.openfaas-fn"} 1.0' in page
    assert 'provider_http_requests_total{code="202",method="POST",path="/system/functions"} 1.0' in page
    assert 'gnomon_async_calls_total{event="accepted"} 0.0' in page
    assert 'gnomon_async_calls_total{event="completed"} 0.0' in page
    assert "process_resident_memory_bytes" in page
