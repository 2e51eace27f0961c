"""Every route and method, without and with wrong credentials: what the table does not open is closed."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from yarl import URL

from gnomon_gateway.api.access import ANY, ROUTES, Access, BasicAuth


def credentials(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


RIGHT = credentials("admin", "s3cret")
AUTH = BasicAuth("admin", "s3cret")
METHODS = (*ANY, "TRACE", "PROPFIND")
UNKNOWN = (
    "/system",
    "/system/functions/",
    "/system/../healthz",
    "/SYSTEM/functions",
    "//system/functions",
    "/gnomon",
    "/ui/",
    "/system/alert",
)
CLOSED = [
    (method, path)
    for path in (*(route.path for route in ROUTES), *UNKNOWN)
    for method in METHODS
    if not any(route.path == path and method in route.methods and route.access is not Access.AUTH for route in ROUTES)
]
CONTROL = [(route.path, route.methods) for route in ROUTES if route.access is Access.AUTH]


def filled(path: str) -> str:
    return path.replace("{rest}…", "a/b").replace("{name}", "fn").replace("{model}", "m").replace("{version}", "1")


async def test_without_or_with_wrong_credentials_every_closed_route_is_401(start_gateway: Any) -> None:
    gateway = await start_gateway(auth=AUTH)
    await gateway.client.post(gateway.url + "/system/functions", json={"service": "fn", "image": "i"}, headers=RIGHT)
    for given in ({}, credentials("admin", "wrong"), credentials("wrong", "s3cret"), credentials("", "")):
        for method, path in CLOSED:
            async with gateway.client.request(method, URL(gateway.url + filled(path), encoded=True), headers=given) as response:
                assert response.status == 401, (method, path, given)
                assert response.headers["WWW-Authenticate"] == 'Basic realm="Restricted"'
                assert await response.read() in (b"invalid credentials", b"")
    assert [key.name for key in gateway.functions.deployed] == ["fn"]


async def test_with_the_right_ones_they_answer(start_gateway: Any) -> None:
    gateway = await start_gateway(auth=AUTH)
    for path, methods in CONTROL:
        for method in methods:
            async with gateway.client.request(method, gateway.url + filled(path), headers=RIGHT) as response:
                assert response.status not in (401, 403, 405, 500), (method, path)
                assert b"route_not_found" not in await response.read(), (method, path)


async def test_open_routes_ask_for_nothing(start_gateway: Any) -> None:
    gateway = await start_gateway(auth=AUTH)
    for path in ("/healthz", "/metrics"):
        assert (await gateway.call("GET", path))[0] == 200
    assert (await gateway.call("POST", "/async-function/nope"))[0] == 404


async def test_two_authorization_headers_are_none(start_gateway: Any) -> None:
    gateway = await start_gateway(auth=AUTH)
    encoded = RIGHT["Authorization"].encode()
    request = b"GET /system/info HTTP/1.1\r\nHost: localhost\r\nAuthorization: %b\r\nAuthorization: %b\r\n\r\n" % (
        encoded,
        encoded,
    )
    assert (await gateway.raw(request)).startswith(b"HTTP/1.1 401 ")


async def test_a_wrong_method_is_405_and_names_the_right_ones(gateway: Any) -> None:
    for path, methods in CONTROL:
        for method in METHODS:
            if method in methods:
                continue
            async with gateway.client.request(method, gateway.url + filled(path)) as response:
                if path == "/system/namespace/" and response.status == 404:
                    continue
                assert response.status == 405, (method, path)
                assert set(response.headers["Allow"].split(", ")) == set(methods), path
                assert response.headers["X-OpenFaaS-Internal"] == "gnomon"


@pytest.mark.parametrize("path", [*UNKNOWN, "/system/function/", "/system/function/a/b", "/system/logs/x"])
async def test_an_unknown_path_is_404_in_our_json(gateway: Any, path: str) -> None:
    async with gateway.client.get(URL(gateway.url + path, encoded=True)) as response:
        assert response.status == 404
        assert (await response.json())["error"]["code"] == "route_not_found"


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Host": "evil.example"}, "foreign_host"),
        ({"Host": "evil.example:80"}, "foreign_host"),
        ({"Origin": "http://evil.example"}, "foreign_origin"),
        ({"Origin": "null"}, "foreign_origin"),
        ({"Sec-Fetch-Site": "cross-site"}, "foreign_origin"),
    ],
)
async def test_a_web_page_can_use_no_control_route(gateway: Any, headers: dict[str, str], code: str) -> None:
    for path, methods in CONTROL:
        for method in methods:
            async with gateway.client.request(method, gateway.url + filled(path), headers=headers) as response:
                assert response.status == 403, (method, path)
                assert (await response.json())["error"]["code"] == code
    async with gateway.client.get(gateway.url + "/healthz", headers=headers) as response:
        assert response.status == 200


async def test_two_hosts_are_nobodys(gateway: Any) -> None:
    answer = await gateway.raw(b"GET /system/info HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")
    assert answer.split()[1] in (b"400", b"403")
    assert (await gateway.raw(b"GET /system/info HTTP/1.0\r\n\r\n")).split()[1] == b"403"
