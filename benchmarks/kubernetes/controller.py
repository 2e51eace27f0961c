"""The controller that the benchmark `scale` measures: a process of its own, so that its time and memory are only its own.

    python -m benchmarks.kubernetes.controller KUBECONFIG FUNCTIONS REPEATS STEADY_S

The controller is composed as `gnomon serve` composes it, on the same event loop and with the same settings of the garbage
collector: functions, autoscaler and the platform `openfaas` with its informers. Only the load of functions is made up, because
fake nodes answer no requests: the load is what gateways would have counted. Each function scales by its queue, ten waiting
requests an instance. Idle, one function in twenty gets a request each second; busy, each of them does.

take over what runs ▶ steady, idle ▶ steady, busy ▶ several times: a leader takes over, decides for all, and changes 5 %

`scale` has created a Deployment, a Secret, a Service, a budget and one pod for each function before.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from gnomon_autoscaler.controller import Autoscaler
from gnomon_autoscaler.registry import BUILT_IN
from gnomon_core.clock import WallClock
from gnomon_core.fleet import InstanceState
from gnomon_core.functions import FunctionSpec, read_deployment
from gnomon_core.interfaces import StoredFunction
from gnomon_core.json_types import JsonObject
from gnomon_core.process_memory import peak_bytes, resident_bytes
from gnomon_core.scaling import Action, FunctionLoad, LoadCounters
from gnomon_gateway.functions.manager import Manager
from gnomon_gateway.store import SqliteStore
from gnomon_platforms.kubernetes.client import Api, connect
from gnomon_platforms.kubernetes.informer import Informer, Source
from gnomon_platforms.kubernetes.resources import DEPLOYMENTS
from gnomon_platforms.openfaas.observed import OpenFaasOptions
from gnomon_platforms.openfaas.platform import OpenFaasPlatform
from gnomon_server.process import calm_collector
from gnomon_server.scaling import ScalingAdapter

NAMESPACE = "openfaas-fn"
TARGET, QUEUED = 10, 15
"""Requests that wait for each instance; and what lets one become two, at nine tenths of it."""
CHANGED_SHARE = 20
"""One function in so many changes, and one in so many has requests."""
VERSION = 1
TIMEOUT_S = 500.0
SEED = 35
WINDOW_BINS = 600
SETTLING_S = 10.0
SHARED_FOR_S = 0.05
"""Functions that are sampled within this time share their made-up counters: making them is the benchmark's own work."""


def spec(number: int) -> FunctionSpec:
    """The specification of function `number`."""
    labels = {"com.openfaas.scale.type": "queue", "com.openfaas.scale.target": str(TARGET)}
    document = {"service": f"f{number:04d}", "image": "gnomon/none:1", "namespace": NAMESPACE, "labels": labels}
    return read_deployment({**document, "requests": {"cpu": "100m", "memory": "64Mi"}})


class Counted:
    """A `ScaledFleet` whose counters are those that gateways would have streamed."""

    def __init__(self, manager: Manager, clock: WallClock) -> None:
        self.queued: dict[str, int] = {}
        self.busy: frozenset[str] = frozenset()
        """Functions that get a request each second."""
        self._fleet, self._clock, self._begun_s = manager.instances, clock, clock.now_s()
        self._shared = LoadCounters()

    def functions(self) -> Sequence[str]:
        return self._fleet.functions()

    def load(self, function: str) -> FunctionLoad | None:
        load = self._fleet.load(function)
        if load is not None and self._is_made_up(function):
            # A copy would be the benchmark's own work.
            object.__setattr__(load, "counters", self._counters(function))
        return load

    def stamp_without_requests(self, function: str) -> object:
        """A value that changes with the function's settings and instances, but not with its requests."""
        return self._fleet.stamp_without_requests(function)

    def counters(self, function: str) -> LoadCounters | None:
        """The counters of `load`."""
        counters = self._fleet.counters(function)
        return self._counters(function) if self._is_made_up(function) else counters

    def stamp(self, function: str) -> object:
        """A value that changes with the function's counters and instances."""
        stamp = self._fleet.stamp(function)
        if not self._is_made_up(function):
            return stamp
        passed = int(self._clock.now_s() - self._begun_s) if function in self.busy else 0
        return stamp, passed, self.queued.get(function, 0)

    async def apply(self, function: str, actions: Sequence[Action]) -> None:
        await self._fleet.apply(function, actions)

    def _is_made_up(self, function: str) -> bool:
        """Return whether the function has a load. Without one the benchmark asks no more of it than of a gateway."""
        return function in self.busy or function in self.queued

    def _counters(self, function: str) -> LoadCounters:
        queued = self.queued.get(function, 0)
        if function not in self.busy:
            return LoadCounters(queued=queued)
        now_s = self._clock.now_s()
        if queued == self._shared.queued and now_s - self._shared.last_request_s < SHARED_FOR_S:
            return self._shared
        passed_s = now_s - self._begun_s
        self._shared = LoadCounters(
            int(passed_s), int(passed_s), 0.1 * passed_s, 0.1 * passed_s, queued=queued, last_request_s=now_s
        )
        return self._shared


@dataclass
class Joined:
    """The parts of the measured controller."""

    manager: Manager
    platform: OpenFaasPlatform
    scaling: ScalingAdapter
    fleet: Counted
    clock: WallClock


class Controller:
    """The scenario."""

    def __init__(self, api: Api, joined: Joined, functions: int) -> None:
        self._joined, self._functions = joined, [spec(number) for number in range(functions)]
        self._rng = random.Random(SEED)
        self._scales: Informer[int] = Informer(
            api, Source(DEPLOYMENTS, NAMESPACE), lambda document: int(document["spec"].get("replicas", 1))
        )
        self._autoscaler: Autoscaler | None = None
        self._loop: asyncio.Task[None] | None = None

    async def run(self, repeats: int, steady_s: float) -> dict[str, Any]:
        """Run the benchmark and return its measurements."""
        await self._scales.start()
        found: dict[str, Any] = {}
        self._lead(None)
        found["taking_over_s"] = await self._take_up()
        calm_collector()
        report(f"all are served after {found['taking_over_s']:.1f} s")
        few = self._rng.sample(self._functions, len(self._functions) // CHANGED_SHARE)
        for name, busy in (("idle", few), ("busy", self._functions)):
            self._joined.fleet.busy = frozenset(str(function.key) for function in busy)
            await self._take_over()
            found[name] = await self._steady(steady_s)
            report(f"{len(busy)} functions get requests: {found[name]}")
        found["passes"] = []
        for _ in range(repeats):
            found["passes"].append(await self._pass())
            report(f"a leader took over: {found['passes'][-1]}")
        found |= memory()
        await self._end_leading()
        await self._scales.stop()
        return found

    def _lead(self, state: JsonObject | None) -> None:
        """A leader begins, with the state of the one before it."""
        autoscaler = Autoscaler(self._joined.fleet, self._joined.clock)
        if state is not None:
            autoscaler.import_state(state)
        self._joined.scaling.bind(autoscaler)
        self._autoscaler, self._loop = autoscaler, asyncio.get_running_loop().create_task(autoscaler.run())

    async def _end_leading(self) -> None:
        assert self._loop is not None
        self._loop.cancel()
        await asyncio.gather(self._loop, return_exceptions=True)

    async def _take_over(self) -> None:
        """Let the next leader go on from the state of this one, with windows as after five minutes."""
        assert self._autoscaler is not None
        state: Any = self._autoscaler.export_state()
        for name, runner in state["functions"].items():
            busy = name in self._joined.fleet.busy
            draw = self._rng.random
            bins = [[draw(), draw(), draw(), draw()] for _ in range(WINDOW_BINS)] if busy else [WINDOW_BINS]
            runner["windows"]["bins"] = bins
        await self._end_leading()
        self._lead(state)
        await asyncio.sleep(SETTLING_S)

    async def _take_up(self) -> float:
        begun_s = time.monotonic()
        await self._joined.manager.start()
        await until(lambda: all(self._ready(function) == 1 for function in self._functions), "an instance of each")
        return time.monotonic() - begun_s

    def _ready(self, function: FunctionSpec) -> int:
        found = self._joined.platform.instances(str(function.key))
        return sum(instance.state is InstanceState.READY for instance in found)

    async def _steady(self, seconds: float) -> dict[str, float]:
        cpu_s, begun_s = time.process_time(), time.monotonic()
        await asyncio.sleep(seconds)
        passed_s = time.monotonic() - begun_s
        return {"seconds": passed_s, "core_share": (time.process_time() - cpu_s) / passed_s, **memory()}

    async def _pass(self) -> dict[str, float]:
        """A leader takes over, finds that 5 % need a second instance, and writes that."""
        assert self._autoscaler is not None
        single = [function for function in self._functions if self._scale_of(function) == 1]
        changed = self._rng.sample(single, len(self._functions) // CHANGED_SHARE)
        state = self._autoscaler.export_state()
        await self._end_leading()
        for function in changed:
            self._joined.fleet.queued[str(function.key)] = QUEUED
        cpu_s, begun_s = time.process_time(), time.monotonic()
        self._lead(state)
        await self._scales.until(lambda: all(self._scale_of(function) == 2 for function in changed), TIMEOUT_S)
        written_s, cpu_s = time.monotonic() - begun_s, time.process_time() - cpu_s
        decided = sum(self._autoscaler.decided(str(function.key)) > 0 for function in self._functions)
        return {
            "written_s": written_s,
            "cpu_s": cpu_s,
            "decided": decided,
            "changed": len(changed),
        }

    def _scale_of(self, function: FunctionSpec) -> int | None:
        return self._scales.get(NAMESPACE, function.key.name)


async def until(condition: Callable[[], bool], what: str) -> None:
    """Return when this holds."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while not condition():  # noqa: ASYNC110 - what is waited for tells nobody
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise TimeoutError(f"after {TIMEOUT_S:.0f} s still waiting for {what}") from None


def report(text: str) -> None:
    """Write a line of progress to standard error."""
    sys.stderr.write(f"  {text}\n")


def memory() -> dict[str, float]:
    """Resident memory of the process now, and its peak."""
    return {"resident_bytes": resident_bytes(), "peak_bytes": peak_bytes()}


async def main(kubeconfig: Path, functions: int, repeats: int, steady_s: float) -> None:
    """Join the parts, run the scenario, print what was measured as JSON."""
    clock, scaling_policies = WallClock(), BUILT_IN
    api = connect(kubeconfig)
    platform = OpenFaasPlatform(api, OpenFaasOptions(adopting_s=0.0), clock=clock, rng=random.Random(SEED))
    scaling = ScalingAdapter(scaling_policies, lambda: platform.capabilities)
    with tempfile.TemporaryDirectory() as folder:
        store = SqliteStore(Path(folder) / "functions.db")
        manager = Manager(
            store,
            platform,
            scaling,
        )
        for number in range(functions):
            store.put_function(StoredFunction(spec(number), VERSION, 0.0))
        await platform.start(manager.instances)
        joined = Joined(manager, platform, scaling, Counted(manager, clock), clock)
        found = await Controller(api, joined, functions).run(repeats, steady_s)
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
        store.close()


if __name__ == "__main__":
    uvloop.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
