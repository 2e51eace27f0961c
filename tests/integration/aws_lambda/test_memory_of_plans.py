"""A plan that chooses another memory size, carried out on Lambda: gateway, autoscaler and platform as `gnomon serve` joins them.

Only the autoscaler's clock is ours, so that half a minute of arrivals takes no half a minute.
"""

import asyncio
import contextlib
import json
import struct
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch

from gnomon_autoscaler.controller import Autoscaler
from gnomon_autoscaler.registry import BUILT_IN
from gnomon_core.errors import GnomonError
from gnomon_core.fleet import InstanceState
from gnomon_core.functions import FunctionSpec, read_deployment
from gnomon_core.wire import Frame, Member
from gnomon_gateway.functions.manager import Manager
from gnomon_gateway.functions.profiles import LatencyModels
from gnomon_gateway.queueing.queue import Request
from gnomon_gateway.store import SqliteStore
from gnomon_platforms.aws_lambda.invocation import Report
from gnomon_platforms.aws_lambda.platform import LambdaPlatform
from gnomon_platforms.aws_lambda.profiling import Measured, Table, path_of
from gnomon_platforms.aws_lambda.resources import invoke_usd
from gnomon_platforms.aws_lambda.testing.account import IMAGE, Account
from gnomon_profiler.extractor import Description, capture
from gnomon_profiler.repository import DirectoryRepository
from gnomon_server.scaling import ScalingAdapter
from tests.platform_testing import NothingBuilt
from tests.virtual_clock import VirtualClock

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

NAME = "line.openfaas-fn"
SAMPLE = struct.pack("<4f", 1.0, 2.0, 3.0, 4.0)
OWN_MB, CHEAPER_MB = 1769, 512
ANNOTATIONS = {
    "gnomon/model": "line@1",
    "gnomon/autoscaler": "batch",
    "gnomon/memory-mb": str(OWN_MB),
    "gnomon/plan-cores": "any",
    "gnomon/max-batch": "2",
    "gnomon/slo-ms": "5000",
    "gnomon/deadline-ms": "60000",
}


class Asked:
    """A request's answer, when there is one."""

    def __init__(self) -> None:
        self.status: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()

    def answer(self, member: Member, head: bytes) -> None:
        del head
        self.status.set_result((member.code, bytes(member.body)))

    def refuse(self, error: GnomonError) -> None:
        self.status.set_result((error.status, error.body()))

    def stream(self, frame: Frame) -> None:
        raise AssertionError(f"{frame.kind} for a request that is no stream")

    def broken(self) -> None:
        raise AssertionError("nothing was streamed")


class Stage:
    """The gateway's functions on Lambda, under an autoscaler whose clock stands still until it is moved."""

    def __init__(self, aws: Account, models: Path, state: Path) -> None:
        self.reports: list[Report] = []
        self.clock = VirtualClock()
        repository = DirectoryRepository(models)
        self.platform = LambdaPlatform(
            aws.options(), repository, NothingBuilt(), profiles=models / "profiles", on_report=self.reports.append
        )
        scaling = ScalingAdapter(BUILT_IN, lambda: self.platform.capabilities)
        self.store = SqliteStore(state / "functions.db")
        self.manager = Manager(
            self.store,
            self.platform,
            scaling,
            LatencyModels(),
            now=lambda: 0.0,
        )
        # On a loaded machine a plan takes longer than a decision may: here it is waited for.
        self.autoscaler = Autoscaler(self.manager.instances, self.clock, limit_s=60.0)
        scaling.bind(self.autoscaler)
        self.answers: list[asyncio.Future[tuple[int, bytes]]] = []

    def ask(self) -> None:
        """Send one sample."""
        runtime = self.manager.directory.lookup("line")
        assert runtime is not None
        asked, now_s = Asked(), time.monotonic()
        self.answers.append(asked.status)
        runtime.submit(Request(runtime.tensor_lane, now_s, now_s + 60.0, body=SAMPLE, responder=asked, replay_safe=True))

    def sizes_mb(self) -> list[tuple[int, InstanceState]]:
        return [(instance.memory_bytes >> 20, instance.state) for instance in self.manager.instances.seen(NAME)]

    async def play(self, seconds: float) -> None:
        """So long on the autoscaler's clock, with four requests a second."""
        for _ in range(round(2 * seconds)):
            self.ask()
            self.ask()
            await self.clock.advance(0.5)
            await asyncio.gather(*self.answers[-2:])


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A model, and what was measured of it: half of the memory and less, and no slower."""
    folder = tmp_path / "models"
    files = capture(torch.nn.Linear(4, 2).eval(), (torch.ones(2, 4),), Description("line", "1"))
    entry = DirectoryRepository(folder).put("line", "1", files)
    identity = {"model": "line@1", "program": entry.sha256["program.json"], "region": "us-east-1", "image": IMAGE}
    table = Table.open(path_of(folder / "profiles", "line@1", "us-east-1"), identity)
    for memory_mb in (CHEAPER_MB, OWN_MB):
        for batch, seconds in ((1, 0.05), (2, 0.06)):
            table.add(Measured(memory_mb, batch, seconds, 0.01, seconds, 100, (seconds,), (0.5,)))
    return folder


@pytest.fixture
async def stage(aws: Account, models: Path, tmp_path: Path) -> AsyncIterator[Stage]:
    made = Stage(aws, models, tmp_path)
    await made.platform.start(made.manager.instances)
    await made.manager.start()
    scaling = asyncio.create_task(made.autoscaler.run())
    yield made
    scaling.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await scaling
    await made.manager.stop()
    await made.platform.stop()
    made.store.close()


def deployment() -> FunctionSpec:
    labels = {"com.openfaas.scale.min": "2", "com.openfaas.scale.max": "2"}
    return read_deployment({"service": "line", "image": "gnomon/body", "annotations": ANNOTATIONS, "labels": labels})


async def test_slots_of_the_cheaper_size_take_over_and_every_request_is_answered_and_paid_for(stage: Stage, aws: Account) -> None:
    await stage.manager.deploy(deployment())
    await stage.play(28)
    assert {size for size, _ in stage.sizes_mb()} == {OWN_MB}
    # With two slots at most one of them makes room, and the other serves until the first new one does.
    while stage.sizes_mb() != [(CHEAPER_MB, InstanceState.READY)] * 2:
        await stage.play(1)
    before = len(stage.reports)
    await stage.play(2)

    answers = [answer.result() for answer in stage.answers]
    assert {status for status, _ in answers} == {200}
    assert len({body for _, body in answers}) == 1
    assert stage.reports[0].memory_mb == OWN_MB
    assert {report.memory_mb for report in stage.reports[before:]} == {CHEAPER_MB}
    paid = sum(invoke_usd(report.billed_ms / 1000, report.memory_mb) for report in stage.reports)
    assert stage.platform.usage(NAME).cost == pytest.approx(paid)
    chosen = next(
        decision for decision in stage.autoscaler.decisions(NAME) if any(getattr(a, "memory_mb", None) for a in decision.actions)
    )
    assert f"{CHEAPER_MB} MB, B = " in chosen.reason
    assert f"{OWN_MB} MB: +" in chosen.reason
    assert json.dumps(chosen.to_json()).count(f'"memory_mb": {CHEAPER_MB}') >= 1
    versions = aws.client("lambda").list_versions_by_function(FunctionName="gnomon-line-openfaas-fn-image")["Versions"]
    assert {version["MemorySize"] for version in versions if version["Version"] != "$LATEST"} == {OWN_MB, CHEAPER_MB}
