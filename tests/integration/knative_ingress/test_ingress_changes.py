"""Changes while requests flow: none is lost, none goes where nothing is any more, and what is bad changes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest

from gnomon_core.errors import GnomonError
from gnomon_platforms.knative.ingress.config import Limits
from gnomon_platforms.knative.ingress.programming import Command
from gnomon_platforms.knative.ingress.proxy import Proxy, ProxyOptions
from tests.integration.knative_ingress.conftest import Backends, Setup
from tests.knative_ingresses import made, path, rule, split

HOST = "http://a.example.com/"
CLIENTS = 3


@dataclass
class Load:
    """Clients that ask one after the other, on connections that they keep."""

    answers: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    told: asyncio.Event = field(default_factory=asyncio.Event)

    async def ask(self, client: aiohttp.ClientSession) -> None:
        while True:
            try:
                # POST: a client that finds its connection closed does not send it again by itself.
                async with client.post(HOST, data=b"x") as answer:
                    (self.answers if answer.status == 200 else self.failures).append(await answer.text())
            except aiohttp.ClientError as error:
                self.failures.append(repr(error))
            self.told.set()

    async def until_answered(self, count: int) -> None:
        async with asyncio.timeout(60.0):
            reached = len(self.answers) + count
            while len(self.answers) < reached and not self.failures:
                self.told.clear()
                await self.told.wait()


@asynccontextmanager
async def load(setup: Setup) -> AsyncIterator[Load]:
    made_load = Load()
    clients = [setup.client(setup.binds.http) for _ in range(CLIENTS)]
    tasks = [asyncio.create_task(made_load.ask(client)) for client in clients]
    yield made_load
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for client in clients:
        await client.close()


async def test_rollouts_under_load_lose_nothing_and_need_no_reload(setup: Setup, backends: Backends) -> None:
    ports = {name: await backends.begin(name) for name in ("v0", "v1", "v2")}
    setup.serve_at("v0", ports["v0"])
    await setup.apply(made("one", rule("a.example.com", path(split("v0", Which="v0-0")))))
    async with load(setup) as flowing, setup.client(setup.binds.http) as client:
        for number in range(1, 13):
            name = f"v{number % 3}"
            for other in ("v0", "v1", "v2"):
                # The Service of the version before goes at the same time.
                setup.serve_at(other, *([ports[other]] if other == name else []))
            await setup.apply(made("one", rule("a.example.com", path(split(name, Which=f"{name}-{number}")))))
            async with client.get(HOST) as answer:
                assert await answer.text() == name
            await flowing.until_answered(5)
            assert {which for served, headers in backends.seen[-2:] for which in [headers["which"]] if served == name} <= {
                f"{name}-{number}"
            }
    assert flowing.failures == []
    assert setup.proxy.reloads == 1


async def test_a_reload_under_load_loses_nothing_and_a_socket_lives_through_it(setup: Setup, backends: Backends) -> None:
    setup.serve_at("a", await backends.begin("a"))
    setup.serve_at("b", await backends.begin("b"))
    await setup.apply(made("one", rule("a.example.com", path(split("a")))))
    async with load(setup) as flowing, setup.client(setup.binds.http) as client, client.ws_connect(HOST) as socket:
        for number in range(1, 4):
            # A name that no Ingress has had.
            await setup.apply(made("one", rule("a.example.com", path(split("a", **{f"X_{number}": "1"})))))
            await flowing.until_answered(20)
            await socket.send_str("still there")
            assert await socket.receive_str(timeout=10) == "still there a"
        assert setup.proxy.reloads == 4
        # What comes on old connections goes by the new table, too.
        await setup.apply(made("one", rule("a.example.com", path(split("b")))))
        flowing.answers.clear()
        await flowing.until_answered(30)
        assert set(flowing.answers[CLIENTS:]) == {"b"}
    assert flowing.failures == []
    assert setup.proxy.reloads == 4


async def test_more_services_than_backends_are_a_reload(setup: Setup, backends: Backends) -> None:
    port = await backends.begin("a")
    names = [f"s{number}" for number in range(70)]
    for name in names:
        setup.serve_at(name, port)
    some = [made(name, rule(f"{name}.example.com", path(split(name)))) for name in names]
    await setup.apply(*some[:60])
    await setup.apply(*some)
    assert setup.proxy.reloads == 2
    async with setup.client(setup.binds.http) as client:
        for name in names:
            async with client.get(f"http://{name}.example.com/") as answer:
                assert answer.status == 200


async def test_what_is_gone_is_removed_after_a_while(setup: Setup, backends: Backends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnomon_platforms.knative.ingress.proxy.SWEEP_S", 0.0)
    setup.serve_at("a", await backends.begin("a"), await backends.begin("a"))
    await setup.apply(made("one", rule("a.example.com", path(split("a")))))
    await setup.apply()
    async with asyncio.timeout(30.0):
        while await setup.proxy.sweep():
            pass
    held = setup.proxy._held
    assert held is not None
    assert not any(held.maps.values())
    assert not any(held.servers.values())
    async with setup.client(setup.binds.http) as client, client.get(HOST) as answer:
        assert answer.status == 404


async def test_endpoints_that_speak_http2_come_and_go_without_a_reload(
    setup: Setup, backends: Backends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gnomon_platforms.knative.ingress.proxy.SWEEP_S", 0.0)
    first, second, third = [await backends.begin(name) for name in ("first", "second", "third")]
    one = made("one", rule("a.example.com", path(split("a"))))
    # In the configuration it is started with, besides those that come while it runs; the last is the first, by HTTP/1.1.
    for ports, h2c in (((first, second), True), ((second, third), True), ((third,), True), ((first,), False)):
        setup.serve_at("a", *ports, h2c=h2c)
        await setup.apply(one)
        async with asyncio.timeout(30.0):
            while await setup.proxy.sweep():
                pass
        worker = (await setup.proxy._master.workers()).current
        assert worker is not None
        listed = await setup.proxy._master.ask(worker, Command("show servers state b0"))
        assert {line.split()[3].split("-")[0] for line in listed.splitlines() if " b0 " in line} == {
            f"127.0.0.1:{port}" for port in ports
        }
    assert setup.proxy.reloads == 1
    async with setup.client(setup.binds.http) as client, client.get(HOST) as answer:
        assert await answer.text() == "first"


async def test_it_takes_no_more_connections_than_its_memory_has_room_for(folder: Path, setup: Setup) -> None:
    """A node may allow a process a thousand million descriptors: HAProxy would take all of them for its own."""
    setup.proxy = Proxy(ProxyOptions(folder / "other", binds=setup.binds, limits=Limits(descriptors=1000)))
    await setup.apply()
    worker = (await setup.proxy._master.workers()).current
    assert worker is not None
    lines = (await setup.proxy._master.ask(worker, Command("show info"))).splitlines()
    told = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
    assert int(told["Maxsock"]) <= 1000
    # Two each, after those for listeners and threads.
    assert 300 <= int(told["Maxconn"]) <= 500
    await setup.proxy.close()


async def test_what_haproxy_finds_fault_with_is_not_loaded(setup: Setup, backends: Backends, folder: Path) -> None:
    """Its own check is made to fail, as it would for a name that another version of it does not take."""
    wrapper = folder / "haproxy"
    wrapper.write_text(
        f'#!/bin/sh\n[ "$1" = -c ] && [ -e {folder}/bad ] && echo "unknown keyword" && exit 1\nexec haproxy "$@"\n'
    )
    wrapper.chmod(0o755)
    setup.proxy = Proxy(ProxyOptions(folder / "other", str(wrapper), setup.binds))
    setup.serve_at("a", await backends.begin("a"))
    try:
        await setup.apply(made("one", rule("a.example.com", path(split("a")))))
        (folder / "bad").touch()
        with pytest.raises(GnomonError, match="unknown keyword"):
            await setup.apply(made("one", rule("a.example.com", path(split("a", X_New="1")))))
        async with setup.client(setup.binds.http) as client, client.get(HOST) as answer:
            assert await answer.text() == "a"
        (folder / "bad").unlink()
        await setup.apply(made("one", rule("a.example.com", path(split("a", X_New="1")))))
        async with setup.client(setup.binds.http) as client, client.get(HOST):
            assert backends.seen[-1][1]["x-new"] == "1"
    finally:
        await setup.proxy.close()


async def test_a_proxy_that_dies_is_started_again_and_one_that_lives_is_taken_over(setup: Setup, backends: Backends) -> None:
    setup.serve_at("a", await backends.begin("a"))
    one = made("one", rule("a.example.com", path(split("a"))))
    await setup.apply(one)
    process = setup.proxy._process
    assert process is not None
    worker = (await setup.proxy._master.workers()).current
    assert worker is not None
    os.kill(worker, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):  # the master ends itself as soon as it sees that its worker has
        os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    assert not setup.proxy.running
    await setup.apply(one)
    second = setup.proxy._process
    assert second is not None
    async with load(setup) as flowing:
        await flowing.until_answered(10)
        # A process that comes after us knows nothing but the folder.
        successor = Setup(Proxy(setup.proxy._options), setup.binds, setup.services, setup.slices)
        await successor.apply(one)
        await flowing.until_answered(10)
    assert flowing.failures == []
    assert successor.proxy._adopted == second.pid
    assert successor.proxy.running
    await successor.proxy.close()
    await second.wait()
    assert not successor.proxy.running


async def test_what_it_holds_is_answered_before_it_ends(setup: Setup, backends: Backends) -> None:
    setup.serve_at("a", await backends.begin("a", delay_s=1.0))
    await setup.apply(made("one", rule("a.example.com", path(split("a")))))
    async with setup.client(setup.binds.http) as client:
        held = asyncio.create_task(client.post(HOST, data=b"x"))
        async with asyncio.timeout(30.0):
            await backends.asked.wait()
        await setup.proxy.close(drain_s=30.0)
        async with await held as answer:
            assert (answer.status, await answer.text()) == (200, "a")
        with pytest.raises(aiohttp.ClientError):
            await client.post(HOST, data=b"x")
