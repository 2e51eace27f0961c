"""What those who asked for an instance are told where it cannot be had."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from gnomon_core.clock import WallClock
from gnomon_core.errors import GnomonError
from gnomon_core.seam_values import InstanceRequest
from gnomon_platforms.beginning import starting
from gnomon_platforms.kubernetes.objects.functions import DeployedFunction
from gnomon_platforms.openfaas.lives import Life
from gnomon_platforms.openfaas.planning import Step
from gnomon_platforms.openfaas.surroundings import Surroundings
from gnomon_platforms.openfaas.workloads import Workload
from gnomon_platforms.testing import Recorder
from tests.unit.kubernetes_platform.test_planning import SPEC, deployed, spare

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


async def asked(
    found: DeployedFunction, written: Written, *, timeout_s: float, done: Callable[[Recorder], bool], spares: int = 0
) -> dict[str, str]:
    """Ask for one instance, and return who has gone, with why."""
    told = Recorder()
    around = Surroundings(
        deployed=lambda _: found,
        pods=lambda _: [spare(f"p{number}") for number in range(spares)],
        session=cast("Any", None),
        clock=WallClock(),
        adopting=lambda: False,
        left_alone=lambda _: False,
        caught_up=lambda *_: asyncio.sleep(0),
        start_timeout_s=timeout_s,
    )
    workload = Workload(SPEC.key, cast("Any", written), around)
    request = InstanceRequest(SPEC, 1, 1, "n1", {})
    workload.add(Life(starting("a", request, "n1", 0, 0.0), request, told, workload.forget))
    try:
        async with asyncio.timeout(30):
            while not done(told):
                workload.look()
                await asyncio.sleep(0)
    finally:
        await workload.close()
    return dict(told.gone)


async def test_who_waits_in_vain_is_told_why_kubernetes_makes_no_pod() -> None:
    found = replace(deployed(1), failure=QUOTA)
    gone = await asked(found, Written(), timeout_s=0.0, done=lambda told: bool(told.gone))
    assert QUOTA in gone["a"]


@pytest.mark.parametrize(("status", "code"), [(400, "kubernetes_invalid"), (503, "kubernetes_denied")])
async def test_who_waits_is_told_at_once_what_kubernetes_refuses_beside_the_deployment(status: int, code: str) -> None:
    refusal = GnomonError(status, code, "services is forbidden: exceeded quota: small", "Ask for more.")
    gone = await asked(deployed(1), Written(refusal), timeout_s=1e6, done=lambda told: bool(told.gone), spares=1)
    assert "exceeded quota: small" in gone["a"]
