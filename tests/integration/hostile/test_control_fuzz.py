"""Documents that were nearly right, and paths that mean one thing to us and another to a proxy: each refused, in our words."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import pytest

from tests.integration.hostile.conftest import MODEL, Answer, Attacked, check_error

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
    """One request with this target as it is written."""
    head = "".join(f"{line}\r\n" for line in ("Host: 127.0.0.1", "Connection: close", *lines, f"Content-Length: {len(body)}"))
    (answer,) = gateway.exchange(f"{method} {target} HTTP/1.1\r\n{head}\r\n".encode() + body)
    return answer


def hostile_value(chance: random.Random) -> Any:
    nested: Any = "x"
    for _ in range(chance.choice([1, 100, 900])):
        nested = [nested]
    one = chance.choice(TEXTS), chance.choice(NUMBERS), chance.choice([None, True, False]), nested
    many = [
        ["a"] * chance.choice([1, 10_000]),
        {str(n): "x" for n in range(chance.choice([1, 3000]))},
        {chance.choice(TEXTS): "x"},
    ]
    return chance.choice([*one, *one, *many])


def nearly(chance: random.Random, document: dict[str, Any]) -> bytes:
    """A document with a few of its values spoiled, and sometimes its text as well."""
    spoiled = copy.deepcopy(document)
    for key in chance.sample(sorted(spoiled), chance.randrange(1, 4)):
        inner = spoiled[key]
        if isinstance(inner, dict) and chance.random() < 0.5:
            inner[chance.choice([*inner, *TEXTS])] = hostile_value(chance)
        else:
            spoiled[key] = hostile_value(chance)
    text = json.dumps(spoiled)
    data = text.encode()
    at = chance.randrange(len(data))
    return chance.choice(
        [
            data,
            data,
            data[:at],
            data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :],
            text.encode("utf-16"),
            b"\xef\xbb\xbf" + data,
            # Every key twice.
            f"{text[:-1]},{text[1:]}".encode(),
            data + b" " * 100_000,
        ]
    )


def functions(gateway: Attacked) -> list[str]:
    """What is deployed."""
    return named(gateway.call("GET", "/system/functions").json())


def named(documents: list[dict[str, Any]]) -> list[str]:
    """The functions' names, but for the model's, which other tests have captured meanwhile."""
    return [document["name"] for document in documents if document["name"] != MODEL]


@pytest.mark.parametrize("path", NEARLY)
def test_what_is_nearly_right_is_refused_in_our_words_and_changes_nothing(gateway: Attacked, path: str) -> None:
    chance = random.Random(path)
    before = functions(gateway)
    methods = ["POST"] if "scale" in path or path.endswith("/") else ["POST", "PUT", "DELETE"]
    for _ in range(ROUNDS // len(NEARLY)):
        method, body = chance.choice(methods), nearly(chance, NEARLY[path])
        answer = ask(gateway, method, path + chance.choice(QUERIES), body, f"Content-Type: {chance.choice(KINDS)}")
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
        "X-Original-URL: /system/secrets",
        "Range: bytes=0-3",
    ):
        answer = ask(gateway, "GET", "/system/functions", b"", line)
        assert answer.status == 200
        assert named(json.loads(answer.body)) == functions(gateway)
