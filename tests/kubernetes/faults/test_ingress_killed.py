"""One of two processes of the ingress class goes, the one that leads: no request is lost, and changes are followed and said.

killed ▶ its HAProxy serves on ▶ the other one leads when the Lease is over ▶ begun again ▶ goes on with that HAProxy
told to end ▶ the other one leads at once ▶ what its HAProxy holds is answered ▶ gone
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
from aiohttp import web

from deploy.test_cluster.clusters import Cluster
from gnomon_platforms.knative.ingress.model import ingress
from tests.kubernetes.knative_ingress.conftest import Ingresses, haproxy, ingress_kind, own_namespace
from tests.kubernetes.knative_ingress.processes import IngressProcess, ingress_process
from tests.kubernetes.knative_ingress.test_ingress_on_knative import Flow
from tests.kubernetes.knative_ingress.test_ingress_reconciler import own_address

__all__ = ["haproxy", "ingress_kind", "own_namespace"]


@contextlib.asynccontextmanager
async def answering(answer: Callable[[web.Request], Awaitable[web.Response]]) -> AsyncIterator[int]:
    """A server that answers so, at this port of this machine's own address."""
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, own_address(), 0).start()
    yield runner.addresses[0][1]
    await runner.cleanup()


async def first(_: web.Request) -> web.Response:
    return web.Response(text="first")


async def second(_: web.Request) -> web.Response:
    return web.Response(text="second")


Two = tuple[IngressProcess, Ingresses, Ingresses]


@contextlib.asynccontextmanager
async def two(cluster: Cluster, namespace: str, port: int, *more: str) -> AsyncIterator[Two]:
    """Two processes, of which the first leads, and their Ingresses as each serves them: `one` leads to this port by `a`."""
    kind = f"class-{namespace}"
    given = (cluster.kubeconfig, f"--ingress-class={kind}", f"--namespace={namespace}", *more)
    async with ingress_process(*given) as leader:
        led = Ingresses(cluster, namespace, kind, leader.binds)
        await asyncio.to_thread(led.service, "a", own_address(), port=port)
        one = await asyncio.to_thread(led.put, "one", "a")
        await led.ready("one")
        async with ingress_process(*given) as follower:
            other = Ingresses(cluster, namespace, kind, follower.binds)
            await other.serves("one", ingress(one).hash)
            yield leader, led, other


def users(ingresses: Ingresses) -> aiohttp.ClientSession:
    """They come from outside."""
    return aiohttp.ClientSession(connector=aiohttp.UnixConnector(ingresses.binds.http.removeprefix("unix@")))


async def test_a_killed_ones_proxy_serves_on_the_other_one_takes_over_and_the_next_one_goes_on_with_it(
    ingress_kind: Cluster, own_namespace: str, haproxy: None
) -> None:
    async with (
        answering(first) as port,
        answering(second) as another,
        two(ingress_kind, own_namespace, port) as (leader, led, other),
        users(led) as session,
    ):
        await asyncio.to_thread(led.service, "b", own_address(), port=another)
        flow = Flow(session, f"http://{led.host('one')}/", pause_s=0.01)
        flowing = asyncio.create_task(flow.run())
        await flow.until("first", 50)
        await leader.end(signal.SIGKILL)

        # Nobody leads, and nobody tells the HAProxy of the killed one.
        changed = await asyncio.to_thread(other.put, "one", "b")
        await other.serves("one", ingress(changed).hash)
        await flow.until("first", flow.answers["first"] + 50)
        # From now on nothing happens, but that the other one leads.
        await other.ready("one")

        await leader.begin()
        await flow.until("second", 50)
        flowing.cancel()
        assert set(flow.answers) == {"first", "second"}


async def test_one_that_ends_leads_no_longer_while_it_answers_what_it_holds(
    ingress_kind: Cluster, own_namespace: str, haproxy: None
) -> None:
    asked, may_answer = asyncio.Event(), asyncio.Event()

    async def held(_: web.Request) -> web.Response:
        asked.set()
        await may_answer.wait()
        return web.Response(text="held")

    async with (
        answering(held) as port,
        two(ingress_kind, own_namespace, port, "--drain=600") as (leader, led, other),
        users(led) as session,
    ):
        calling = asyncio.create_task(session.post(f"http://{led.host('one')}/"))
        async with asyncio.timeout(60.0):
            await asked.wait()
        ending = asyncio.create_task(leader.end())
        await asyncio.to_thread(other.put, "one", "a", path={"path": "/only"})
        await other.ready("one")
        assert not ending.done(), "it answers what it holds"
        may_answer.set()
        async with await calling as answer:
            assert (answer.status, await answer.text()) == (200, "held")
        assert await ending == 0
