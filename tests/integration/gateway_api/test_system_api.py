"""Who the gateway is, whether it serves, and what it counted."""

from __future__ import annotations

import platform
from typing import Any


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
    assert "process_resident_memory_bytes" in page
