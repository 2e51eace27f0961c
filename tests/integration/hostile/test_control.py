"""Documents and requests that nobody meant: each refusal is ours, says what is wrong and what is allowed, and nothing breaks."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gnomon_core.settings import SCALE_TABLE, TABLE
from gnomon_gateway.api.routes import ANY, ROUTES, Access
from tests.integration.hostile.conftest import Attacked, check_error

GOOD = {"service": "deployed", "image": "functions/alpine", "envProcess": "cat", "labels": {"com.openfaas.scale.min": "0"}}
WRONG: dict[str, tuple[Any, ...]] = {
    "service": (1, True, [], {}, "", "Upper", "under_score", "a" * 64, "-a", "a-", "a.b", "../a", "a/b", "a\n", "ä", "a\0", " a"),
    "namespace": (1, [], {}, "nowhere", "../openfaas-fn", "a\0b"),
    "image": (1, [], {}, "", "unknown:1", "../../etc/passwd", "a\0b"),
    "envProcess": (1, [], {}, "", " ", "a\0b"),
    "envVars": (1, "a", [], ["a"], {"a": 1}, {"a": None}, {"a": {}}, {"": "a"}, {"a=b": "c"}, {"a\0b": "c"}, {"a": "b\0c"}),
    "labels": (1, "a", ["a"], {"a": 1}, {"a": []}),
    "annotations": (1, "a", ["a"], {"a": 1}, {"a": {"b": "c"}}),
    "constraints": (1, "a", {"a": "b"}, [1], [None]),
    "secrets": (1, "a", {"a": "b"}, [1], [None], ["unknown"], ["../../etc/passwd"], [""]),
    "limits": (1, "a", ["a"], {"memory": 1}, {"memory": "lots"}, {"memory": "-1"}, {"memory": "9" * 400}, {"cpu": "x"}),
    "requests": (1, "a", {"memory": 1}, {"memory": "lots"}, {"cpu": "9" * 400}),
    "readOnlyRootFilesystem": ("false", 1, [], {}),
}  # fmt: skip
BODIES = (
    b"",
    b"{",
    b"[]",
    b"1",
    b"null",
    b'"text"',
    b"\xff\xfe",
    b"{}x",
    b"{'a': 1}",
    b"[" * 100_000,
    b'{"a":' * 20_000,
    b'"\\ud800"',
)
CONTROL = [(route.path, method) for route in ROUTES if route.access is Access.AUTH for method in route.methods]
WITH_BODY = [(path, method) for path, method in CONTROL if method in ("POST", "PUT") or path.endswith(("functions", "secrets"))]


def filled(path: str) -> str:
    return path.replace("{name}", "deployed")


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in WRONG.items() for value in values])
def test_a_wrong_field_of_a_deployment_is_refused_and_named(gateway: Attacked, field: str, value: Any) -> None:
    answer = gateway.call("POST", "/system/functions", {**GOOD, field: value})
    assert answer.status == (404 if field == "namespace" and isinstance(value, str) and "\0" not in value else 400)
    error = check_error(answer)
    assert any(word in error["message"] for word in (field.removesuffix("s"), "memory", "cpu", "process")), error
    assert gateway.call("GET", "/system/function/deployed").status == 404


@pytest.mark.parametrize("setting", [*TABLE, *SCALE_TABLE], ids=lambda setting: setting.key)
@pytest.mark.parametrize("value", ["", "no such thing", "-1", "9" * 400, "nan", "1\n2"])
def test_a_bad_setting_is_refused_with_what_is_allowed(gateway: Attacked, setting: Any, value: str) -> None:
    where = "annotations" if setting in TABLE else "labels"
    image = "gnomon/body" if setting.key == "gnomon/model" else GOOD["image"]
    answer = gateway.call("POST", "/system/functions", {**GOOD, "image": image, where: {setting.key: value}})
    error = check_error(answer)
    assert answer.status in (400, 404)
    if error["code"] == "invalid_setting":
        assert setting.key in error["message"]
        assert setting.allowed in error["hint"]
    else:
        # A name of something that is not there: the hint lists what is.
        assert error["code"] in ("unknown_policy", "model_not_found"), error
        assert error["hint"]
    assert gateway.call("GET", "/system/function/deployed").status == 404


def test_an_unknown_policy_is_refused_with_the_known_ones(gateway: Attacked) -> None:
    known = gateway.call("GET", "/gnomon/policies").json()
    for key, kind in (("gnomon/autoscaler", "scaling"), ("gnomon/scheduler", "scheduling")):
        answer = gateway.call("POST", "/system/functions", {**GOOD, "annotations": {key: "unheard-of"}})
        error = check_error(answer)
        assert (answer.status, error["code"]) == (400, "unknown_policy")
        assert "unheard-of" in error["message"]
        assert all(policy["name"] in error["hint"] for policy in known[kind])
    answer = gateway.call("POST", "/system/functions", {**GOOD, "annotations": {"gnomon/autoscalar": "kpa"}})
    assert check_error(answer)["code"] == "unknown_setting"
    assert "gnomon/autoscaler" in check_error(answer)["hint"]


@pytest.mark.parametrize(("path", "method"), WITH_BODY)
def test_a_body_that_is_no_object_is_a_400(gateway: Attacked, path: str, method: str) -> None:
    for body in BODIES:
        if method == "GET" or (method == "DELETE" and "namespace" in path):
            continue
        answer = gateway.call(method, filled(path), body)
        assert answer.status == 400, (body[:50], answer.data)
        check_error(answer)


@pytest.mark.parametrize("path", sorted({path for path, _ in CONTROL}))
def test_a_wrong_method_is_a_405_with_the_right_ones(gateway: Attacked, path: str) -> None:
    right = {method for known, method in CONTROL if known == path}
    for method in {*ANY, "TRACE", "PROPFIND"} - right - {"HEAD"}:
        answer = gateway.call(method, filled(path))
        assert answer.status == 405, method
        assert {name.strip() for name in answer.headers["Allow"].split(",")} - {"HEAD"} == right - {"HEAD"}
        check_error(answer)


@pytest.mark.parametrize("replicas", [-1, 10_001, 1.5, "1", None, True, [1], {}, 10**30])
def test_a_wrong_number_of_replicas_is_refused(gateway: Attacked, replicas: Any) -> None:
    answer = gateway.call("POST", "/system/scale-function/echo", {"serviceName": "echo", "replicas": replicas})
    assert (answer.status, check_error(answer)["code"]) == (400, "invalid_field")
    assert "10000" in check_error(answer)["hint"]


@pytest.mark.parametrize("name", ["", "Upper", "a" * 64, "../a", "a/b", "a\n", "ä", "-a", ".", "..", "a\0b", "%2e%2e", "🦄"])
def test_a_bad_namespace_is_refused(gateway: Attacked, name: str) -> None:
    answer = gateway.call("POST", "/system/namespace/", {"name": name})
    assert answer.status == 400
    check_error(answer)
    assert name not in gateway.call("GET", "/system/namespaces").json()


@pytest.mark.parametrize("query", ["tail=x", "since=yesterday", "since=2024-01-01", "follow=perhaps", "tail=9e9", "name="])
def test_a_query_that_cannot_be_read_is_a_422(gateway: Attacked, query: str) -> None:
    answer = gateway.call("GET", f"/system/logs?{'' if 'name' in query else 'name=echo&'}{query}")
    assert answer.status == 422
    check_error(answer)


TEXT = st.text(max_size=20) | st.sampled_from(
    ["", "\0", "a\nb", "../x", "%2e%2e", "a" * 300, "1e400", "NaN", "🦄", "${x}", "echo"]
)
JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
NAMES = (
    "service",
    "functionName",
    "serviceName",
    "name",
    "namespace",
    "image",
    "replicas",
    "value",
    "rawValue",
    "labels",
    "secrets",
)
DOCUMENT = JSON | st.dictionaries(st.sampled_from(NAMES), JSON, max_size=5)
PATH = st.sampled_from(
    [path for path, _ in CONTROL] + ["/{name}", "/system/{name}", "/async-function/{name}", "/function/{name}/{name}"]
)


@settings(
    max_examples=400,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(
    st.tuples(st.sampled_from(ANY), PATH),
    TEXT,
    DOCUMENT,
    st.dictionaries(st.sampled_from(["namespace", "name", "limit", "usage"]), TEXT),
)
def test_whatever_is_sent_the_answer_is_no_accident(
    gateway: Attacked, target: tuple[str, str], name: str, document: Any, query: dict[str, str]
) -> None:
    method, path = target
    written = quote(name.encode("utf-8", "surrogatepass"), safe="")
    question = "&".join(f"{key}={quote(value.encode('utf-8', 'surrogatepass'), safe='')}" for key, value in query.items())
    body = json.dumps(document).encode()
    answer = gateway.call(method, f"{path.replace('{name}', written)}?{question}", body)
    # What is there from before, and what is open, may well be found.
    assert answer.status in (200, 202, 400, 404, 405, 409, 413, 422), (answer.status, answer.data)
    if answer.status >= 400 and method != "HEAD":
        check_error(answer)
