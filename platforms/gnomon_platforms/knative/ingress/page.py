"""What a process of the ingress class tells over HTTP: `/healthz` to its kubelet, `/metrics` to Prometheus.

It is well while it answers and its HAProxy lives, which the controller starts again: where that does not help, a new container
may. That the API server is silent is a figure and no reason to begin anew: what is served goes on.

`/metrics` has HAProxy's figures after its own, since Prometheus reads one port of a pod that it finds by annotations.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiohttp
from aiohttp import web

from gnomon_core.errors import GnomonError, bad_request
from gnomon_core.packaging import how_to_install
from gnomon_platforms.knative.ingress.controller import Controller
from gnomon_platforms.knative.ingress.proxy import Proxy
from gnomon_platforms.kubernetes.client import Asked
from gnomon_platforms.kubernetes.figures import cluster_figures

if TYPE_CHECKING:
    from prometheus_client import Metric
    from prometheus_client.registry import Collector
else:
    Collector = object

UNIX = "unix@"
TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Told:
    """What there is to tell. `leads` is whether this process says what is served; `own` is where its HAProxy has its figures."""

    asked: Asked
    leads: Callable[[], bool]
    proxy: Proxy
    controller: Controller
    own: str


@contextlib.asynccontextmanager
async def page(bind: str, told: Told) -> AsyncIterator[None]:
    """The page at `ADDRESS:PORT` or `unix@PATH` for the length of a block; none where `bind` is empty.

    Raises:
        GnomonError: 400 `ingress_page`; 501 `ingress_page` where nothing is there to write figures with.

    """
    if not bind:
        yield
        return
    runner = web.AppRunner(_application(told), access_log=None)
    await runner.setup()
    try:
        try:
            await _site(runner, bind).start()
        except (OSError, ValueError, OverflowError) as error:
            raise bad_request("ingress_page", f"--page {bind!r} cannot be had: {error}.", "Write ADDRESS:PORT.") from error
        yield
    finally:
        await runner.cleanup()


class Figures(Collector):
    """Read when they are asked for."""

    def __init__(self, told: Told) -> None:
        self._told = told

    def collect(self) -> Iterator[Metric]:
        """The metrics."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415 - whoever has a page has it

        told = self._told
        yield from cluster_figures(told.asked, leads=told.leads())
        yield GaugeMetricFamily("gnomon_ingress_served", "Ingresses that are served.", told.controller.serves)
        refused = "Whether HAProxy has refused the last change, so that what was served before is served still."
        yield GaugeMetricFamily("gnomon_ingress_refused", refused, bool(told.controller.failure))
        loaded = "Configurations that HAProxy has loaded, the first one included."
        yield CounterMetricFamily("gnomon_ingress_reloads", loaded, told.proxy.reloads)


def _application(told: Told) -> web.Application:
    try:
        from prometheus_client import CollectorRegistry, generate_latest  # noqa: PLC0415 - only a page needs it
    except ImportError:
        message = "prometheus-client is not installed, which writes the page's figures."
        raise GnomonError(501, "ingress_page", message, f"{how_to_install('gateway')} Or leave out --page.") from None
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Figures(told))

    async def healthz(_: web.Request) -> web.Response:
        lives = told.proxy.running
        return web.Response(text="OK" if lives else "HAProxy does not run", status=200 if lives else 503)

    async def metrics(_: web.Request) -> web.Response:
        body = generate_latest(registry)
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):  # then it has nothing to tell
            body += await _proxys(told.own)
        return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4"})

    application = web.Application()
    application.router.add_get("/healthz", healthz)
    application.router.add_get("/metrics", metrics)
    return application


def _site(runner: web.AppRunner, bind: str) -> web.BaseSite:
    if bind.startswith(UNIX):
        return web.UnixSite(runner, bind.removeprefix(UNIX))
    address, _, port = bind.rpartition(":")
    return web.TCPSite(runner, address.strip("[]*") or None, int(port))


async def _proxys(own: str) -> bytes:
    """HAProxy's figures, as Prometheus reads them.

    Raises:
        aiohttp.ClientError, TimeoutError: it does not answer, or has none.

    """
    unix = aiohttp.UnixConnector(own.removeprefix(UNIX)) if own.startswith(UNIX) else None
    address, _, port = own.rpartition(":")
    at = "localhost" if unix is not None else f"{address.strip('*') or '127.0.0.1'}:{port}"
    async with (
        aiohttp.ClientSession(connector=unix, timeout=aiohttp.ClientTimeout(TIMEOUT_S), raise_for_status=True) as session,
        session.get(f"http://{at}/metrics") as answer,
    ):
        return await answer.read()
