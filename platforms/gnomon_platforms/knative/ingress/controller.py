"""The ingress class: what is seen goes to the proxy, and what the proxy serves goes into the Ingresses' status.

    news ▶ a moment, for more of it ▶ judge each Ingress ▶ tables ▶ proxy serves
                                                                      └─▶ probe each host by hash ▶ status

Every replica has a proxy of its own and programs it; the one that leads asks all of them before it says Ready. It does so beside
the programming: a proxy or an API server that hangs keeps no route from being followed. Nobody tells that HAProxy has died, nor
that this replica leads from now on: both are looked for once a second.

Nothing is kept but what the cluster says, so a process that is new starts from the same. Ingresses have no finalizer of ours: one
that is gone is gone from the tables by the next round of each replica, and a cluster that we were removed from can still delete
its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field

from gnomon_core.addresses import host_and_port
from gnomon_core.clock import Clock, WallClock, utc_now_s
from gnomon_core.errors import GnomonError
from gnomon_platforms.knative.ingress.judging import Case, Cases, judge
from gnomon_platforms.knative.ingress.model import Ingress, Key, SeenIngress
from gnomon_platforms.knative.ingress.probing import probe
from gnomon_platforms.knative.ingress.proxy import Proxy
from gnomon_platforms.knative.ingress.routing import Routing, routing
from gnomon_platforms.knative.ingress.seeing import Seeing, SeeingOptions
from gnomon_platforms.knative.ingress.status import FALSE, UNKNOWN, Addresses, Verdict, status
from gnomon_platforms.knative.resources import INGRESSES
from gnomon_platforms.kubernetes.client import Api, Document, Fence
from gnomon_platforms.kubernetes.writes import Patch, Target, Write, Writer

MOMENT_S = 0.05
LOOK_AGAIN_S = 1.0
MAX_WRITES = 8

ProbeAt = tuple[str, str]
"""Where a proxy answers probes for external hosts, and for all."""

_LOG = logging.getLogger("gnomon.ingress")


@dataclass(frozen=True, slots=True)
class ControllerOptions:
    """What the operator says. `peers` is a Service with ports `probe-http` and `probe-local` of every replica's proxy."""

    addresses: Addresses
    own: ProbeAt
    seeing: SeeingOptions = field(default_factory=SeeingOptions)
    peers: Key | None = None


@dataclass(frozen=True, slots=True)
class Reported:
    """What was written of an Ingress."""

    uid: str
    generation: int
    network: Verdict


@dataclass(frozen=True, slots=True)
class Served:
    """The Ingresses that the proxy was told of last, and those of them without their host."""

    ingresses: tuple[SeenIngress, ...] = ()
    losers: Mapping[Key, str] = field(default_factory=dict)


class Controller:
    """One replica. It writes only while `leading` says so; `fence` is asked right before each write."""

    def __init__(
        self,
        api: Api,
        proxy: Proxy,
        options: ControllerOptions,
        *,
        leading: Callable[[], bool] = lambda: True,
        fence: Fence | None = None,
        clock: Clock | None = None,
        chance: random.Random | None = None,
    ) -> None:
        self._proxy, self._options, self._leading = proxy, options, leading
        self._clock = clock or WallClock()
        self._writer = Writer(api, self._clock, chance or random.SystemRandom(), fence)
        self._news = asyncio.Event()
        self._seeing = Seeing(api, options.seeing, self._news.set)
        self._cases: Cases = {}
        self._applied: Routing | None = None
        self._failure = ""
        self._served = Served()
        self._to_tell = asyncio.Event()
        """Set when something else may be served, or be said of it."""
        self._led = False
        self._reported: dict[Key, Reported] = {}
        self._places = asyncio.Semaphore(MAX_WRITES)

    @property
    def serves(self) -> int:
        """How many Ingresses are served."""
        return sum(case.served is not None for case in self._cases.values())

    @property
    def failure(self) -> str:
        """Why the proxy serves what it did before; empty while it serves what it is to."""
        return self._failure

    async def run(self) -> None:
        """Serve until cancelled.

        Raises:
            GnomonError: the cluster cannot be seen at all, at the start.

        """
        await self._seeing.start()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._program())
                tasks.create_task(self._tell())
        finally:
            await self._seeing.stop()
            self._writer.close()

    async def _program(self) -> None:
        """Let the proxy serve what is seen, for ever."""
        again = True
        while True:
            await _due(self._news, again=again, untold=lambda: not self._proxy.running)
            await self._clock.sleep(MOMENT_S)
            self._news.clear()
            try:
                again = await self._round()
            except (GnomonError, OSError) as error:
                _LOG.warning("a round of the ingress failed: %s", error)
                again = True

    async def _round(self) -> bool:
        """Look at everything once; whether to look again without news."""
        seen = self._seeing.ingresses()
        await self._seeing.try_certificates(self._named(seen), self._proxy.takes)
        self._judge(seen)
        served = {key: case.served for key, case in self._cases.items() if case.served is not None}
        wanted = routing(served.values(), self._seeing)
        if wanted != self._applied or not self._proxy.running:
            await self._apply(wanted)
        self._served = Served(tuple(seen.values()), wanted.losers)
        self._to_tell.set()
        waiting = any(case.trouble is not None and case.trouble.waits for case in self._cases.values())
        return await self._proxy.sweep() or waiting or bool(self._failure)

    def _named(self, seen: dict[Key, SeenIngress]) -> set[Key]:
        """The Secrets that are named by what is served, or by what is to be."""
        ingresses = [one.ingress for one in seen.values()] + [case.served for case in self._cases.values()]
        return {tls.secret for one in ingresses if one is not None for tls in one.tls}

    async def _apply(self, wanted: Routing) -> None:
        """Let the proxy serve this; where it does not, what is served stays, and Ingresses say so."""
        try:
            await self._proxy.apply(wanted)
        except GnomonError as error:
            _LOG.warning("the proxy serves what it did before: %s", error)
            self._applied, self._failure = None, error.message
        else:
            self._applied, self._failure = wanted, ""

    def _judge(self, seen: dict[Key, SeenIngress]) -> None:
        now_s = self._clock.now_s()
        for key in self._cases.keys() - seen.keys():
            del self._cases[key]
        for key, one in seen.items():
            case = self._cases.get(key)
            if case is None or case.uid != one.uid:
                case = self._cases[key] = Case(one.uid)
            judge(case, one, self._seeing, now_s)

    # What is said of it, by who leads

    async def _tell(self) -> None:
        """Say of each Ingress what is served of it, for ever."""
        again = False
        while True:
            await _due(self._to_tell, again=again, untold=lambda: self._leading() != self._led)
            self._to_tell.clear()
            self._led = self._leading()
            if not self._led:
                self._reported.clear()
            try:
                again = self._led and not await self._report_all(self._served)
            except (GnomonError, OSError) as error:
                _LOG.warning("what is served could not be said: %s", error)
                again = True

    async def _report_all(self, served: Served) -> bool:
        """Say what is served; whether all of it is settled."""
        for key in self._reported.keys() - {one.key for one in served.ingresses}:
            del self._reported[key]
        return all(await _together(self._report(one, served) for one in served.ingresses))

    async def _report(self, one: SeenIngress, served: Served) -> bool:
        """Say what is served of an Ingress; whether that is what it asks for, or will not change by itself."""
        case = self._cases.get(one.key)
        if case is None or case.uid != one.uid:
            # It has gone meanwhile.
            return True
        network = await self._network(one, case, served)
        reported = Reported(one.uid, one.generation, network)
        if self._reported.get(one.key) != reported:
            async with self._places:
                await self._write(one, network)
            self._reported[one.key] = reported
        return network.status != UNKNOWN

    async def _network(self, one: SeenIngress, case: Case, served: Served) -> Verdict:
        trouble = case.trouble
        if trouble is not None:
            return Verdict(UNKNOWN if trouble.waits else FALSE, trouble.reason, trouble.message)
        if one.key in served.losers:
            return Verdict(FALSE, "HostConflict", f"an older Ingress has the host {served.losers[one.key]}")
        last = self._reported.get(one.key)
        if last == Reported(one.uid, one.generation, Verdict()):
            return last.network
        assert one.ingress is not None
        unproven = await self._unproven(one.ingress)
        return Verdict(UNKNOWN, "Uninitialized", f"{unproven} {self._failure}".strip()) if unproven else Verdict()

    async def _unproven(self, one: Ingress) -> str:
        """Which host which proxy does not serve as this Ingress says; empty when all do."""
        for at in self._proxies():
            for rule in one.rules:
                where = at[0] if rule.external else at[1]
                for host in rule.hosts:
                    try:
                        answer = await probe(where, host)
                    except OSError as error:
                        return f"the proxy at {where} does not answer: {error}"
                    if answer.hash != one.hash:
                        return f"the proxy at {where} does not serve {host} as it is to be served yet"
        return ""

    def _proxies(self) -> list[ProbeAt]:
        found = {self._options.own}
        for one in self._seeing.slices(self._options.peers) if self._options.peers else ():
            ports = dict(one.ports)
            if {"probe-http", "probe-local"} <= ports.keys():
                http, local = ports["probe-http"], ports["probe-local"]
                found |= {(host_and_port(host, http), host_and_port(host, local)) for host in one.addresses}
        return sorted(found)

    async def _write(self, one: SeenIngress, network: Verdict) -> None:
        def decide(seen: Document | None) -> Write | None:
            if seen is None or seen["metadata"]["uid"] != one.uid or seen["metadata"]["generation"] != one.generation:
                # There is news of it on its way.
                return None
            made = status(seen.get("status") or {}, one.generation, (network, Verdict()), self._options.addresses, utc_now_s())
            return None if made is None else Patch({"status": made}, "status")

        await self._writer.settle(Target(INGRESSES, *one.key), decide, f"say what is served of {'/'.join(one.key)}")


async def _together(asked: Iterable[Awaitable[bool]]) -> list[bool]:
    return list(await asyncio.gather(*asked))


async def _due(news: asyncio.Event, *, again: bool, untold: Callable[[], bool]) -> None:
    """Return at news; after a second without any, if it is to be looked `again`, or if something is that nobody tells."""
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_AGAIN_S):
                await news.wait()
                return
        if again or untold():
            return
