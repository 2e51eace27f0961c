"""The profiling run on AWS Lambda, through the platform that also serves: one slot of each memory size, batch after batch."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from operator import itemgetter

from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance
from gnomon_core.functions import FunctionKey, FunctionSpec, read_deployment
from gnomon_core.interfaces import BatchChannel, InstanceRequest, ModelEntry, ModelRepository
from gnomon_core.signature import ModelSignature
from gnomon_core.wire import Frame
from gnomon_platforms.aws_lambda.invocation import Report
from gnomon_platforms.aws_lambda.platform import LambdaPlatform
from gnomon_platforms.aws_lambda.profiling import MeasurementPlan, Table, check_budget, measured, zeros
from gnomon_platforms.aws_lambda.resources import LambdaOptions

DEADLINE_MS = 880_000
"""A batch may take as long as Lambda lets it."""
NAME = "gnomon-profile"


class _NothingBuilt:
    """An image resolver without any built image."""

    def resolve(self, image: str) -> None:
        del image


class _SlotListener:
    """A platform's listener that follows one slot, the newest."""

    def __init__(self) -> None:
        self.follow("")

    def follow(self, instance_id: str) -> None:
        """Follow this slot from now on. The platform reports no event of a slot before `create` has returned."""
        loop = asyncio.get_running_loop()
        self._id = instance_id
        self.ready: asyncio.Future[BatchChannel] = loop.create_future()
        self.gone: asyncio.Future[str] = loop.create_future()

    @property
    def reason(self) -> str:
        """The reason why the slot has ended."""
        return self.gone.result() if self.gone.done() else "its answer broke off"

    def instance_ready(self, instance: Instance, channel: BatchChannel) -> None:
        if instance.id == self._id:
            self.ready.set_result(channel)

    def instance_gone(self, instance_id: str, reason: str) -> None:
        if instance_id != self._id:
            return
        self.gone.set_result(reason)
        if not self.ready.done():
            self.ready.set_exception(GnomonError(503, "start_failed", f"The function could not be started: {reason}"))

    def pair_changed(self, body: Instance) -> None:
        """Do nothing: Lambda has no pairs."""

    def shadow_found(self, shadow: Instance) -> None:
        """Do nothing: Lambda has no Shadows."""

    def log_line(self, function: FunctionKey, instance_id: str, text: str) -> None:
        """Do nothing: log lines are ignored."""


class Profiling:
    """A run over the cells that `table` lacks. `agreed` is the accepted cost by estimate, in dollars."""

    def __init__(
        self,
        options: LambdaOptions,
        repository: ModelRepository,
        entry: ModelEntry,
        plan: MeasurementPlan,
        table: Table,
        *,
        agreed: float,
        note: Callable[[str], None],
    ) -> None:
        self._options = options
        self._repository = repository
        self._entry = entry
        self._plan = plan
        self._table = table
        self._agreed = agreed
        self._note = note
        self._reports: list[Report] = []
        self._numbers = itertools.count(1)
        self._spent = 0.0

    async def run(self) -> None:
        """Measure what is missing.

        Raises:
            GnomonError: AWS refused, the function cannot be started, or it costs more than was agreed to.

        """
        started = datetime.now(UTC)
        listener = _SlotListener()
        platform = LambdaPlatform(self._options, self._repository, _NothingBuilt(), on_report=self._reports.append)
        await platform.start(listener)
        try:
            for memory_mb, cells in itertools.groupby(self._plan.cells, key=itemgetter(0)):
                missing = [batch for _, batch in cells if (memory_mb, batch) not in self._table.cells]
                if missing:
                    await self._size(platform, listener, memory_mb, missing)
            counted = await platform.counted(f"{NAME}.openfaas-fn", started, datetime.now(UTC))
            self._table.counted = asdict(counted) | {"until": datetime.now(UTC).isoformat(timespec="seconds")}
            self._table.write()
        finally:
            await platform.stop()

    async def _size(self, platform: LambdaPlatform, listener: _SlotListener, memory_mb: int, batches: list[int]) -> None:
        """The missing batches of one memory size."""
        spec = self._spec(memory_mb)
        instance = await platform.create(InstanceRequest(spec, 1, 1, None, {}))
        listener.follow(instance.id)
        channel = await listener.ready
        signature = platform.signature(spec)
        assert signature is not None
        for batch in batches:
            reports = await self._cell(channel, listener, signature, batch)
            cell = measured(memory_mb, batch, reports)
            spent = platform.spent(str(spec.key)).cost
            self._table.cost += spent - self._spent
            self._spent = spent
            self._table.add(cell)
            done, count = sum(each in self._table.cells for each in self._plan.cells), len(self._plan.cells)
            self._note(
                f"{done}/{count}  {memory_mb} MB, batch {batch}: {1000 * cell.seconds:.1f} ms, spread {100 * cell.spread:.1f} %,"
                f" ${spent:.5f} so far"
            )
            check_budget(spent, self._agreed, self._note)
        await platform.destroy(instance.id)
        # A slot ends after `destroy` has returned, and counts towards --lambda-concurrency until then.
        await listener.gone

    async def _cell(self, channel: BatchChannel, listener: _SlotListener, signature: ModelSignature, batch: int) -> list[Report]:
        """The reports of `repeats` Invokes."""
        self._reports.clear()
        for _ in range(self._plan.repeats):
            answer: asyncio.Future[Frame | None] = asyncio.get_running_loop().create_future()
            channel.run(zeros(signature, batch, next(self._numbers)), answer.set_result)
            result = await answer
            if result is None:
                raise GnomonError(
                    503, "batch_lost", f"A batch of {batch} was lost: {listener.reason}", "Try again: what is measured is kept."
                )
            bad = next((member for member in result.members if member.code >= 300), None)  # noqa: PLR2004 - not a success
            if bad is not None:
                raise GnomonError(
                    bad.code, "batch_failed", f"A batch of {batch} failed: {bytes(bad.body).decode(errors='replace')}"
                )
        return list(self._reports)

    def _spec(self, memory_mb: int) -> FunctionSpec:
        annotations = {
            "gnomon/model": f"{self._entry.name}@{self._entry.version}",
            "gnomon/memory-mb": str(memory_mb),
            "gnomon/max-batch": str(max(batch for _, batch in self._plan.cells)),
            "gnomon/deadline-ms": str(DEADLINE_MS),
        }
        return read_deployment({"service": NAME, "image": "gnomon/body", "annotations": annotations})
