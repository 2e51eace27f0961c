"""Control routes under hostile use."""

from __future__ import annotations

import copy
import json
import random
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gnomon_core.settings import SCALE_TABLE, TABLE
from gnomon_gateway.api.access import ANY, ROUTES, Access
from tests.integration.hostile.conftest import MODEL, Answer, Attacked, check_error

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
        # `infaas` decides about applications, not about a function such as this one.
        assert all(policy["name"] in error["hint"] for policy in known[kind] if policy["name"] != "infaas")
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
def test_any_input_gets_a_deliberate_answer(
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


DEPLOYMENT = {
    "service": "nearly",
    "image": "unheard-of:1",
    "envProcess": "cat",
    "envVars": {"a": "b"},
    "labels": {"com.openfaas.scale.min": "0", "com.openfaas.scale.max": "3"},
    "annotations": {"gnomon/max-batch": "2", "gnomon/slo-ms": "10", "gnomon/autoscaler": "kpa"},
    "secrets": [],
    "limits": {"memory": "100Mi", "cpu": "100m"},
    "constraints": ["a==b"],
    "readOnlyRootFilesystem": True,
    "namespace": "",
    "functionName": "nearly",
}
NEARLY: dict[str, dict[str, Any]] = {
    "/system/functions": DEPLOYMENT,
    "/system/scale-function/nearly": {"serviceName": "nearly", "replicas": 1, "namespace": ""},
    "/system/secrets": {"name": "nearly", "namespace": "", "value": "v", "rawValue": "dg=="},
    "/system/namespace/": {"name": "nearly", "labels": {"a": "b"}, "annotations": {"c": "d"}},
    "/system/namespace/nearly": {"name": "nearly", "labels": {"a": "b"}, "annotations": {"c": "d"}},
}
TEXTS = (
    "", "\0", "a\nb", "../x", "%2e%2e", "a" * 300, "a" * 70_000, "1e400", "NaN", "🦄", "\u202e", "\uff10", "-0", "0x10",
    "9" * 5000, "\r\nX: y", "1e30Gi", "100E", "1_000", " 1 ", "a.openfaas-fn", "a..b", "nearly.nowhere", "-1Mi",
)  # fmt: skip
NUMBERS = (0, -1, 2**31, 2**63, -(2**63), 2**64, 10**30, 10**400, 1.5, -0.0, 1e308, 5e-324)
KINDS = ("application/json", "text/plain", "multipart/form-data; boundary=x", "", "application/json; charset=utf-16", "a" * 2000)
QUERIES = (
    "",
    "?namespace=%00",
    "?namespace=nowhere",
    "?namespace=..%2f",
    "?%ff=%fe",
    "?a=b&&=",
    "?namespace=a&namespace=b",
    "?%zz",
)
ROUNDS = 400


def ask(gateway: Attacked, method: str, target: str, body: bytes = b"", *lines: str) -> Answer:
    """Send a request with this target as it is written."""
    head = "".join(f"{line}\r\n" for line in ("Host: 127.0.0.1", "Connection: close", *lines, f"Content-Length: {len(body)}"))
    (answer,) = gateway.exchange(f"{method} {target} HTTP/1.1\r\n{head}\r\n".encode() + body)
    return answer


def hostile_value(rng: random.Random) -> Any:
    nested: Any = "x"
    for _ in range(rng.choice([1, 100, 900])):
        nested = [nested]
    choices = rng.choice(TEXTS), rng.choice(NUMBERS), rng.choice([None, True, False]), nested
    many = [
        ["a"] * rng.choice([1, 10_000]),
        {str(n): "x" for n in range(rng.choice([1, 3000]))},
        {rng.choice(TEXTS): "x"},
    ]
    return rng.choice([*choices, *choices, *many])


def nearly(rng: random.Random, document: dict[str, Any]) -> bytes:
    """A document with a few of its values spoiled, and sometimes its text as well."""
    spoiled = copy.deepcopy(document)
    for key in rng.sample(sorted(spoiled), rng.randrange(1, 4)):
        inner = spoiled[key]
        if isinstance(inner, dict) and rng.random() < 0.5:
            inner[rng.choice([*inner, *TEXTS])] = hostile_value(rng)
        else:
            spoiled[key] = hostile_value(rng)
    text = json.dumps(spoiled)
    data = text.encode()
    at = rng.randrange(len(data))
    return rng.choice(
        [
            data,
            data,
            data[:at],
            data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :],
            text.encode("utf-16"),
            b"\xef\xbb\xbf" + data,
            # Every key twice.
            f"{text[:-1]},{text[1:]}".encode(),
            data + b" " * 100_000,
        ]
    )


def functions(gateway: Attacked) -> list[str]:
    """The deployed functions."""
    return named(gateway.call("GET", "/system/functions").json())


def named(documents: list[dict[str, Any]]) -> list[str]:
    """The functions' names, but for the model's, which other tests have captured meanwhile."""
    return [document["name"] for document in documents if document["name"] != MODEL]


@pytest.mark.parametrize("path", NEARLY)
def test_nearly_valid_control_request_is_refused_and_changes_nothing(gateway: Attacked, path: str) -> None:
    rng = random.Random(path)
    before = functions(gateway)
    methods = ["POST"] if "scale" in path or path.endswith("/") else ["POST", "PUT", "DELETE"]
    for _ in range(ROUNDS // len(NEARLY)):
        method, body = rng.choice(methods), nearly(rng, NEARLY[path])
        answer = ask(gateway, method, path + rng.choice(QUERIES), body, f"Content-Type: {rng.choice(KINDS)}")
        # A secret or a namespace may turn out to be one.
        assert answer.status in ({400, 404, 409} if "function" in path else {202, 400, 404, 409, 413}), (body[:300], answer)
        if answer.status != 202:
            check_error(answer)
    assert functions(gateway) == before
    for kind in ("secrets", "namespace/nearly"):
        gateway.call("DELETE", f"/system/{kind}", {"name": "nearly"})


TRICKS = (
    "/{}/", "//{}", "/x/../{}", "/./{}", "/{}/..", "/{}%2f", "/%2e%2e/{}", "/..%2f{}", "/{}%00", "/{}%0d%0aX:%20y", "/{}%ff%fe",
    "/{};x=1", "/{}.json", "/{}%3fx", "/{}%23x", "/\\{}", "/x%5c..%5c{}", "/%252e%252e/{}",
)  # fmt: skip
MEANT = ("system/functions", "system/secrets", "system/info", "system/logs", "system/namespaces", "gnomon/policies", "metrics")


@pytest.mark.parametrize("trick", TRICKS)
def test_a_path_means_what_is_written_or_nothing(gateway: Attacked, trick: str) -> None:
    before = functions(gateway)
    for meant in MEANT:
        for method in ("GET", "POST", "DELETE"):
            answer = ask(gateway, method, trick.format(meant), json.dumps(DEPLOYMENT).encode())
            assert answer.status in (400, 404), (method, trick.format(meant), answer.status)
            check_error(answer)
    assert functions(gateway) == before


@pytest.mark.parametrize(
    "name",
    ["..%2f..%2fetc%2fpasswd", "%2e%2e", "%00", "a%00b", "%ff%fe", "%zz", "a%0d%0aX:%20y", "a" * 5000, "%f0%9f%a6%84", "*"],
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/system/function/{}"),
        ("POST", "/system/scale-function/{}"),
        ("GET", "/system/namespace/{}"),
        ("POST", "/system/namespace/{}"),
        ("DELETE", "/system/namespace/{}"),
        ("GET", "/gnomon/functions/{}/decisions"),
        ("GET", "/gnomon/functions/{}"),
        ("GET", "/system/logs?name={}"),
        ("GET", "/system/functions?namespace={}"),
        ("GET", "/system/secrets?namespace={}"),
    ],
)
def test_a_hostile_name_in_a_path_or_query_is_not_found_or_refused(gateway: Attacked, method: str, path: str, name: str) -> None:
    answer = ask(gateway, method, path.format(name), b'{"replicas": 1}')
    assert answer.status in (400, 404, 422)
    check_error(answer)


@pytest.mark.parametrize(
    "query",
    [
        "limit=0", "limit=-1", "limit=1001", "limit=1.0", "limit=", "limit=" + "9" * 5000, "limit=%00", "limit=NaN",
    ],
)  # fmt: skip
def test_a_wrong_number_of_decisions_is_refused(gateway: Attacked, query: str) -> None:
    answer = ask(gateway, "GET", f"/gnomon/functions/echo/decisions?{query}")
    assert answer.status == 400
    assert check_error(answer)["code"] == "invalid_query"


def test_headers_that_proxies_believe_change_nothing(gateway: Attacked) -> None:
    for line in (
        "X-HTTP-Method-Override: DELETE",
        "Range: bytes=0-3",
    ):
        answer = ask(gateway, "GET", "/system/functions", b"", line)
        assert answer.status == 200
        assert named(json.loads(answer.body)) == functions(gateway)
