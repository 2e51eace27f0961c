"""What those who asked for an instance are told where it cannot be had."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any, cast

import pytest

from gnomon_core.background import Background
from gnomon_core.clock import VirtualClock, WallClock
from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionKey
from gnomon_core.interfaces import InstanceRequest
from gnomon_platforms.common import starting
from gnomon_platforms.kubernetes.objects.functions import DeployedFunction
from gnomon_platforms.kubernetes.objects.pods import PodFacts
from gnomon_platforms.openfaas.events import AGAIN_S, Warnings
from gnomon_platforms.openfaas.planning import Step
from gnomon_platforms.openfaas.workloads import Life, Surroundings, Workload
from gnomon_platforms.testing import Recorder
from tests.unit.kubernetes_platform.small_cluster import SPEC, deployed, running, spare

QUOTA = 'FailedCreate: pods "figlet-1" is forbidden: exceeded quota: small'


class Written:
    """Steps that are written at once. What a function needs beside its Deployment is made, or refused."""

    def __init__(self, refusal: GnomonError | None = None) -> None:
        self.refusal = refusal

    async def take(self, step: Step, spec: object, version: int, deployed: object = None) -> int | None:
        del step, spec, version, deployed

    async def furnish_once(self, spec: object, deployed: object) -> None:
        del spec, deployed
        if self.refusal is not None:
            raise self.refusal


async def refused(
    found: DeployedFunction, written: Written, *pods: PodFacts, timeout_s: float = 1e6
) -> tuple[str, dict[str, str]]:
    """Ask for one instance; why it has gone, and what operators are told by then."""
    told, warned = Recorder(), dict[str, str]()
    around = Surroundings(
        deployed=lambda _: found,
        pods=lambda _: pods,
        session=cast("Any", None),
        clock=WallClock(),
        adopting=lambda: False,
        left_alone=lambda _: False,
        caught_up=lambda *_: asyncio.sleep(0),
        start_timeout_s=timeout_s,
        warn=lambda _, reason, text: warned.update({reason: text}),
    )
    workload = Workload(SPEC.key, cast("Any", written), around)
    request = InstanceRequest(SPEC, 1, 1, "n1", {})
    workload.add(Life(starting("a", request, "n1", 0, 0.0), request, told, workload.forget))
    for pod in pods:
        workload.seen(pod, pod.name)
    try:
        async with asyncio.timeout(30):
            while not told.gone:
                workload.look()
                await asyncio.sleep(0)
    finally:
        await workload.close()
    return told.gone["a"], warned


async def test_who_waits_in_vain_is_told_why_kubernetes_makes_no_pod() -> None:
    why, warned = await refused(replace(deployed(1), failure=QUOTA), Written(), timeout_s=0.0)
    assert QUOTA in why
    assert QUOTA in warned["StartFailed"]


@pytest.mark.parametrize(("status", "code"), [(400, "kubernetes_invalid"), (503, "kubernetes_denied")])
async def test_who_waits_is_told_at_once_what_kubernetes_refuses_beside_the_deployment(status: int, code: str) -> None:
    refusal = GnomonError(status, code, "services is forbidden: exceeded quota: small", "Ask for more.")
    why, warned = await refused(deployed(1), Written(refusal), spare("p1"))
    assert "exceeded quota: small" in why
    assert "exceeded quota: small" in warned["StartFailed"]


async def test_operators_are_told_of_a_pod_that_ended_before_it_served_and_of_cores_that_it_did_not_get() -> None:
    pod = running("p1", "a", serving=False, ready=False, trouble="resize Infeasible: Node didn't have enough capacity: cpu")
    ended = replace(pod, phase="Failed", trouble="Evicted: The node was low on resource: memory.")
    why, warned = await refused(deployed(1), Written(), pod, ended)
    assert why == ended.trouble
    assert warned == {"ResizePending": f"p1: {pod.trouble}", "StartFailed": f"Instance a: {ended.trouble}"}


async def test_each_warning_of_a_function_is_written_once_a_minute_at_most() -> None:
    clock, asked, behind = VirtualClock(), list[str](), Background()

    async def find(key: FunctionKey) -> DeployedFunction | None:
        asked.append(key.name)
        return None

    warnings = Warnings(cast("Any", None), clock, behind, find)
    for later_s in (0.0, 1.0, AGAIN_S - 2.0, 1.0, 1.0):
        await clock.advance(later_s)
        warnings.say(SPEC.key, "NoCapacity", "There is no room.")
        warnings.say(FunctionKey("other"), "NoCapacity", "There is no room.")
    await behind.settled()
    assert Counter(asked) == {"figlet": 2, "other": 2}
