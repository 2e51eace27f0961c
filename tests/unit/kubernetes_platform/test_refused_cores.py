"""Cores that Kubernetes refuses a pod are not on their way: its instance goes on with what it has, and its room is others'."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import aiohttp
import pytest

from gnomon_core.clock import WallClock
from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance
from gnomon_core.functions import read_deployment
from gnomon_core.interfaces import InstanceRequest
from gnomon_platforms.common import starting
from gnomon_platforms.kubernetes.informer import Change
from gnomon_platforms.kubernetes.nodes import NodeFacts, given_to
from gnomon_platforms.kubernetes.resources import REFUSED_S
from gnomon_platforms.openfaas import workloads
from gnomon_platforms.openfaas.planning import Resize, Step
from gnomon_platforms.openfaas.platform import OpenFaasPlatform
from gnomon_platforms.openfaas.workloads import Surroundings, Workload
from gnomon_platforms.testing import Recorder
from tests.pod_process import Process, pod_process
from tests.unit.kubernetes_platform.small_cluster import deployed, running
from tests.waiting import until

SPEC = read_deployment({"service": "figlet", "image": "figlet:1", "annotations": {"gnomon/cores": "1"}})
QUOTA = GnomonError(503, "kubernetes_denied", "exceeded quota: small", "Raise the quota.")
BUSY = GnomonError(503, "kubernetes_busy", "too many requests", "Try again in a moment.")


class Clock(WallClock):
    """Stands still until it is moved."""

    time_s = 100.0

    def now_s(self) -> float:
        return self.time_s


class Refusing:
    """Steps: pods get no other cores."""

    def __init__(self, refusal: GnomonError) -> None:
        self.refusal, self.asked = refusal, list[int]()

    async def take(self, step: Step, spec: object, version: int, deployed: object = None) -> int | None:
        del spec, version, deployed
        if isinstance(step, Resize):
            self.asked.append(step.cores)
            raise self.refusal
        return None

    async def furnish_once(self, spec: object, deployed: object) -> None:
        del spec, deployed

    async def token(self, deployed: object) -> str:
        del deployed
        return "t0ken"


class Stage:
    """A function of one pod on a node of four cores."""

    def __init__(self, refusal: GnomonError, has: int, wanted: int, session: aiohttp.ClientSession) -> None:
        self.clock, self.steps, self.listener, self.warned = Clock(), Refusing(refusal), Recorder(), dict[str, str]()
        self.platform = platform = OpenFaasPlatform(cast("Any", None), clock=self.clock)
        platform._listener = self.listener
        self.pod = replace(running("p1", "a", cores=float(has), effective_cores=float(has)), ip="127.0.0.1")
        around = Surroundings(
            deployed=lambda _: replace(deployed(1, available=1), counted=1),
            pods=lambda _: (self.pod,),
            session=session,
            clock=self.clock,
            adopting=lambda: False,
            left_alone=lambda _: False,
            caught_up=lambda *_: asyncio.sleep(0),
            start_timeout_s=1e6,
            warn=lambda _, reason, text: self.warned.update({reason: text}),
            ledger=platform._ledger,
        )
        platform._ledger.node_changed(Change(("", "n1"), None, NodeFacts("n1", 4.0, 2**34, usable=True, pods=9)))
        platform._ledger.give("a", given_to(SPEC, wanted, "n1"))
        workload = platform._workloads[str(SPEC.key)] = Workload(SPEC.key, cast("Any", self.steps), around)
        request = InstanceRequest(SPEC, 1, wanted, "n1", {})
        workload.add(platform._life_of(starting("a", request, "n1", 0, 0.0), request))
        workload.seen(replace(self.pod, phase="Pending", healthy=False), "p1")
        workload.seen(self.pod, "p1")

    @property
    def instance(self) -> Instance:
        [found] = self.platform.instances(str(SPEC.key))
        return found

    @property
    def cores(self) -> tuple[int, int | None, float]:
        """What it has, what is on its way, what the node has left."""
        [node] = self.platform.nodes()
        return self.instance.cores, self.instance.coming_cores, node.free_cores


@pytest.fixture
async def process(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Process]:
    async with pod_process(monkeypatch) as made:
        monkeypatch.setattr(workloads, "LOOK_AGAIN_S", 0.01)
        yield made


@asynccontextmanager
async def begun(refusal: GnomonError, *, has: int, wanted: int) -> AsyncIterator[Stage]:
    async with aiohttp.ClientSession() as session:
        stage = Stage(refusal, has, wanted, session)
        try:
            await stage.listener.channel("a")
            yield stage
        finally:
            for workload in stage.platform._workloads.values():
                await workload.close()
            stage.platform._writer.close()


async def test_cores_that_were_refused_are_neither_coming_nor_taken(process: Process) -> None:
    async with begun(QUOTA, has=1, wanted=1) as stage:
        await stage.platform.resize("a", 3)
        assert stage.cores == (1, 3, 1.0), "they are on their way"
        await until(lambda: stage.warned)
        assert stage.cores == (1, None, 3.0), "nobody is about to give them"
        assert "exceeded quota" in stage.warned["ResizePending"]
        with pytest.raises(GnomonError, match="exceeded quota"):
            await stage.platform.resize("a", 3)
        # Another size is another question, and the same one is asked again when its time is over.
        await stage.platform.resize("a", 2)
        await until(lambda: stage.steps.asked == [3, 2])
        stage.clock.time_s += REFUSED_S + 1.0
        await stage.platform.resize("a", 3)
        await until(lambda: stage.steps.asked == [3, 2, 3])
    assert process.told == []


async def test_a_process_that_keeps_its_cores_uses_all_of_them_again(process: Process) -> None:
    async with begun(QUOTA, has=3, wanted=3) as stage:
        process.told.clear()
        await stage.platform.resize("a", 1)
        await until(lambda: process.told == [1, 3])
        assert stage.cores == (3, None, 1.0)


async def test_one_that_was_to_begin_with_more_begins_with_those_that_its_pod_has(process: Process) -> None:
    async with begun(QUOTA, has=1, wanted=3) as stage:
        assert stage.steps.asked == [3]
        assert stage.listener.ready["a"].cores == 1
        assert stage.cores == (1, None, 3.0)
    assert process.told == []


async def test_one_that_was_told_of_fewer_than_it_gets_after_all_uses_all_of_them_again(process: Process) -> None:
    """Threads come first. Before its pod could be resized it was to keep what it has."""
    async with begun(BUSY, has=3, wanted=3) as stage:
        await stage.platform.resize("a", 1)
        await until(lambda: stage.steps.asked)
        assert process.told[-1] == 1
        await stage.platform.resize("a", 3)
        await until(lambda: process.told[-1] == 3)
        assert stage.cores == (3, None, 1.0)


async def test_what_may_yet_succeed_is_asked_for_again(process: Process) -> None:
    async with begun(BUSY, has=1, wanted=1) as stage:
        await stage.platform.resize("a", 3)
        await until(lambda: stage.steps.asked[:3] == [3, 3, 3])
        assert stage.cores == (1, 3, 1.0)
    assert process.told == []
