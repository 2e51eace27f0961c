"""What the gateway of Revisions that batch tells over HTTP: to the autoscaler class, and to whoever collects figures.

    /healthz                                          whether it may be led to
    /metrics                                          everything
    /metrics?name[]=kn_revision_request_queued        what waits, as activators tell it
    /metrics?name[]=gnomon_revision_batch_seconds     how long batches take, and how far they are from that

The class asks for what waits up to twenty times a second, so each part can be had without the rest, or several parts together.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping

from aiohttp import web

from gnomon_core.functions import FunctionKey
from gnomon_gateway.functions.function_runtime import FunctionRuntime
from gnomon_platforms.knative.autoscaler import metrics as learned
from gnomon_platforms.knative.autoscaler import metrics as waiting
from gnomon_platforms.knative.autoscaler.metrics import Learned


class RevisionFigures:
    """What is told of these Revisions. `takes_batches` says of which of them pods are sent whole batches."""

    def __init__(self, runtimes: Callable[[], Iterable[FunctionRuntime]], takes_batches: Callable[[FunctionKey], bool]) -> None:
        self._runtimes, self._takes_batches = runtimes, takes_batches
        self._parts: Mapping[str, Callable[[], str]] = {
            waiting.FIGURE: lambda: waiting.waiting_to_text(self.waiting(), self.beside()),
            learned.SECONDS: lambda: learned.learned_to_text(self.learned()),
        }

    def text(self, names: Iterable[str]) -> str | None:
        """The parts of these names; None where nobody named any, or one that is not here, and so asks for everything."""
        named = set(names)
        if not named or not named <= self._parts.keys():
            return None
        return "".join(part() for name, part in self._parts.items() if name in named)

    def whole(self) -> str:
        """All parts."""
        return "".join(part() for part in self._parts.values())

    def waiting(self) -> dict[FunctionKey, int]:
        """The requests that are here and that no pod tells of, by Revision."""
        counts = {runtime.key: _untold(runtime) for runtime in self._runtimes()}
        return {key: count for key, count in counts.items() if count > 0}

    def beside(self) -> dict[FunctionKey, int]:
        """The requests, ever, that went to pods in batches beyond one for each, by Revision."""
        sizes = {runtime.key: runtime.metrics.batch_sizes for runtime in self._runtimes()}
        counts = {key: round(size.total) - sum(size.counts) for key, size in sizes.items()}
        return {key: count for key, count in counts.items() if count > 0}

    def learned(self) -> dict[FunctionKey, Learned]:
        """How long batches take, by Revision; those of which nobody knows are left out."""
        found = {}
        for runtime in self._runtimes():
            latency_s = runtime.latency_s() if self._takes_batches(runtime.key) else ()
            if latency_s:
                sizes = {worker.slot.size for worker in runtime.dispatcher.workers.by_id.values()}
                found[runtime.key] = Learned(latency_s, runtime.latency_spread(sizes))
        return found


def page(trouble: Callable[[], str], figures: RevisionFigures, others: Callable[[], Awaitable[bytes]]) -> web.Application:
    """The routes. `trouble` keeps it from being led to, else it is empty; `others` are the figures of every gateway."""

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text=trouble() or "OK", status=503 if trouble() else 200)

    async def metrics(request: web.Request) -> web.Response:
        text = figures.text(request.query.getall("name[]", []))
        if text is not None:
            return web.Response(text=text)
        body = await others() + figures.whole().encode()
        return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4"})

    application = web.Application()
    application.router.add_get("/healthz", healthz)
    application.router.add_get("/metrics", metrics)
    return application


def _untold(runtime: FunctionRuntime) -> int:
    """Requests that wait here, and those that are under way beyond one for each batch, which queue-proxy tells of."""
    load = runtime.load()
    return load.queued + max(0, load.executing - len(runtime.all_in_flight()))
