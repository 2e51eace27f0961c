"""Starting, stopping, and noticing instances that do not answer."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from gnomon_core.errors import GnomonError
from gnomon_gateway.server.gateway_server import GatewayServer
from gnomon_gateway.serving import health
from tests.waiting import until


async def test_stopping_answers_what_is_under_way_and_closes_what_is_idle(gateway: Any) -> None:
    runtime = await gateway.deploy()
    busy, idle = await gateway.connect(), await gateway.connect()
    assert (await idle.call("/function/f", b"1")).status == 200
    call = asyncio.ensure_future(busy.call("/function/f/held", b"finish me"))
    await until(lambda: runtime.load().executing == 1)
    stopping = asyncio.ensure_future(gateway.server.stop())
    await asyncio.sleep(0)
    assert not call.done()
    gateway.release()
    await stopping
    response = await call
    assert (response.status, response.body) == (200, b"finish me")
    assert response.headers["connection"] == "close"
    assert await idle.closed()
    with pytest.raises(ConnectionRefusedError):
        await gateway.connect()


async def test_signals_stay_with_the_program(gateway: Any) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    second = GatewayServer(gateway.server._shared.routes, port=0)
    await second.start()
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers
    await second.stop()


async def test_a_port_in_use_is_one_clear_line(gateway: Any) -> None:
    second = GatewayServer(gateway.server._shared.routes, port=gateway.server.port)
    with pytest.raises(GnomonError) as caught:
        await second.start()
    assert caught.value.code == "port_in_use"
    assert str(gateway.server.port) in str(caught.value)


async def test_an_idle_instance_that_is_frozen_is_reported_and_gets_nothing_more(
    gateway: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "EVERY_S", 0.05)
    monkeypatch.setattr(health, "PROBE_TIMEOUT_S", 1.0)
    runtime = await gateway.deploy(instances=2)
    gateway.signal("i1", signal.SIGSTOP)
    await until(lambda: bool(gateway.frozen))
    assert gateway.frozen == ["i1"]
    assert runtime.ready == 1
    for _ in range(5):
        assert (await gateway.call("/function/f", b"alive")).status == 200
    assert gateway.frozen == ["i1"]


async def test_a_busy_instance_that_is_frozen_is_bounded_by_its_batch(gateway: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "EVERY_S", 0.05)
    monkeypatch.setattr(health, "BUSY_AT_LEAST_S", 0.3)
    await gateway.deploy(deadline_s=0.1)
    call = asyncio.ensure_future(gateway.call("/function/f/held", b"x"))
    await until(lambda: bool(gateway.frozen))
    assert gateway.frozen == ["i1"]
    assert (await call).status == 504
