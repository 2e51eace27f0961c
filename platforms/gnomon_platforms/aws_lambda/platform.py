"""AWS Lambda as an implementation of `Platform`.

An instance is a slot: one lane in which a batch at a time is invoked. Lambda begins as many sandboxes as there are Invokes under
way, so a fleet of idle slots is what the dispatcher may use at once, and costs nothing; creating one lets a sandbox begin, so
that the first batch finds it warm. `options.concurrency` bounds the slots, and with them threads, connections and the bill.

    spec ▶ recipe ▶ published version (one for each revision and memory size) ▶ slots

The function on Lambda is removed a quarter of an hour after its last slot, and when the gateway stops.

A function's usage and cost are the sums of what its Invokes reported; CloudWatch gives a second opinion.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from gnomon_core.background import Background
from gnomon_core.clock import Clock, WallClock
from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, Node
from gnomon_core.functions import FunctionSpec
from gnomon_core.interfaces import Capabilities, InstanceRequest, ModelRepository, PlatformListener, Usage
from gnomon_core.lambda_pricing import LARGEST_MB, MB_PER_CORE
from gnomon_core.pairs import Pair
from gnomon_core.profiles import ModelProfile
from gnomon_core.signature import ModelSignature
from gnomon_core.units import MEGABYTE, many
from gnomon_platforms.aws_lambda.channel import ChannelContext, LambdaChannel, Slot
from gnomon_platforms.aws_lambda.client import Clients, aws_errors
from gnomon_platforms.aws_lambda.functions import Publisher, RemoteFunctions
from gnomon_platforms.aws_lambda.invocation import CloudWatchTotals, Invoker, LogTail, Report, Target, counted
from gnomon_platforms.aws_lambda.profiling import LambdaProfiles
from gnomon_platforms.aws_lambda.recipes import Recipes
from gnomon_platforms.aws_lambda.resources import LambdaOptions, cores_of, invoke_usd, memory_mb
from gnomon_platforms.aws_lambda.s3_transfer import S3Transfer
from gnomon_platforms.common import Ids, StartingInstances, starting
from gnomon_platforms.images import BuiltImages, ImageTable

CONTROL_THREADS = 4
START_TIMEOUT_S = 120.0
MAX_CORES = -(-LARGEST_MB // MB_PER_CORE)

_LOG = logging.getLogger(__name__)


class LambdaPlatform:
    """The `Platform` (`gnomon_core.interfaces`) of functions on AWS Lambda.

    `profiles` is the folder of the profiles measured on Lambda, `rng` draws the pauses between attempts, `on_report` gets the
    report of each Invoke.
    """

    name = "lambda"
    capabilities = Capabilities(place=False, size=True, victim=True, resize=True, pair=False)

    def __init__(
        self,
        options: LambdaOptions,
        repository: ModelRepository,
        built: BuiltImages,
        *,
        images: Path | None = None,
        profiles: Path | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        start_timeout_s: float = START_TIMEOUT_S,
        on_report: Callable[[Report], None] | None = None,
    ) -> None:
        self._options = options
        self._recipes = Recipes(options, repository, built, ImageTable(images))
        self._measured = LambdaProfiles(profiles)
        self._clock = clock or WallClock()
        self._rng = rng or random.SystemRandom()
        self._start_timeout_s = start_timeout_s
        # An Invoke that was given up blocks its thread a while longer.
        self._threads = ThreadPoolExecutor(2 * options.concurrency, "invoke")
        self._control = ThreadPoolExecutor(CONTROL_THREADS, "lambda")
        self._clients = Clients(options.concurrency)
        self._transfer = S3Transfer(self._clients, options.bucket, options.prefix)
        self._publisher = Publisher(RemoteFunctions(self._clients, self._transfer, options), self._control, self._in_use)
        invoker = Invoker(self._clients, self._transfer)
        self._context = ChannelContext(invoker, self._transfer, self._threads, self._clock, self._rng, self._remove)
        self._slots: dict[str, Slot] = {}
        self._specs: dict[str, FunctionSpec] = {}
        self._accounts = InvokeAccounting(on_report)
        self._background = Background()
        self._begin = self._background.begin
        self._starting: dict[str, asyncio.Task[None]] = {}
        self._ids = Ids()
        self._coming = StartingInstances()
        self._listener: PlatformListener | None = None
        self._region = ""

    async def start(self, listener: PlatformListener) -> None:
        """Check credentials, region and bucket.

        Raises:
            GnomonError: 503 for credentials, a region or a bucket that is missing, with what to do.

        """
        self._listener = listener
        await asyncio.get_running_loop().run_in_executor(self._control, self._check_account)

    async def stop(self) -> None:
        """End every slot and remove the functions."""
        for slot in list(self._slots.values()):
            slot.end("stopped")
        await self._publisher.stop()
        await self._background.settled()
        self._control.shutdown(wait=False)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def check(self, spec: FunctionSpec) -> None:
        """Raise if this function can never run here."""
        self._recipes.find(spec)

    def revision(self, spec: FunctionSpec) -> str:
        """A digest of what the image and the model name now, and of the memory size."""
        return f"{self._recipes.find(spec).revision} {spec.settings.memory_mb or ''}".strip()

    async def prepare(self, spec: FunctionSpec) -> None:
        """Deploy the function, so that the first slot waits for a sandbox only."""
        recipe = await asyncio.to_thread(self._recipes.find, spec)
        await self._publisher.version(spec.key, recipe, memory_mb(spec, spec.settings.cores))

    def signature(self, spec: FunctionSpec) -> ModelSignature | None:
        return self._recipes.find(spec).signature

    def nodes(self) -> tuple[Node, ...]:
        """A single node, the region: `concurrency` slots of Lambda's largest size. A taken slot counts as a whole one."""
        slots, free = self._options.concurrency, self._options.concurrency - len(self._slots)
        slot_bytes = LARGEST_MB * MEGABYTE
        return (Node(self._node, slots * MAX_CORES, slots * slot_bytes, float(free * MAX_CORES), free * slot_bytes, pairs=False),)

    def instances(self, function: str) -> tuple[Instance, ...]:
        there = (slot.instance for slot in self._slots.values() if slot.instance.function == function)
        return (*there, *self._coming.of(function))

    def contents(self) -> set[str]:
        """The built handlers that slots were made from which have not ended."""
        return {slot.recipe.content_id for slot in self._slots.values()} - {""}

    async def create(self, request: InstanceRequest) -> Instance:
        """Start a slot. Later events are reported to the listener."""
        assert self._listener is not None
        spec = request.spec
        own_mb, size_mb = memory_mb(spec, request.cores), memory_mb(spec, request.cores, request.memory_mb)
        id_, now_s = self._ids.new(f"{spec.key.name}-"), self._clock.now_s()
        instance = starting(id_, request, self._node, size_mb * MEGABYTE, now_s)
        instance = replace(instance, memory_mb=None if size_mb == own_mb else size_mb)
        with self._coming.counted(instance):
            recipe = await asyncio.to_thread(self._recipes.find, spec)
        if request.node not in (None, self._node):
            raise GnomonError(
                503, "no_capacity", f"There is no node {request.node!r} here, only {self._node!r}.", "Name this node, or none."
            )
        if len(self._slots) >= self._options.concurrency:
            raise GnomonError(
                503,
                "no_capacity",
                f"All {self._options.concurrency} slots are taken.",
                "Allow more with --lambda-concurrency, up to what the account may run at once.",
            )
        remote = self._publisher.name(spec.key, recipe)
        self._accounts.opened(instance.function, remote)
        slot = self._slots[instance.id] = Slot(instance, spec.key, recipe, remote, listener=self._listener, ended=self._ended)
        self._specs[instance.id] = spec
        self._starting[instance.id] = self._begin(self._start(slot, size_mb))
        return instance

    async def destroy(self, instance_id: str) -> None:
        """End a slot. Unknown ids are ignored."""
        await self._coming.begun(instance_id)
        slot = self._slots.get(instance_id)
        if slot is not None:
            slot.stop()
            # As on every platform, the listener is called from the loop, after this has returned.
            asyncio.get_running_loop().call_soon(slot.end, "stopped")

    async def resize(self, instance_id: str, cores: int) -> None:
        """Serve a slot's batches by another memory size from now on. Unknown ids are ignored.

        Raises:
            GnomonError: 503 `no_capacity` or `aws_…`; the slot keeps what it has.

        """
        slot = self._slots.get(instance_id)
        if slot is None:
            return
        size_mb = memory_mb(self._specs[instance_id], cores)
        version = await self._publisher.version(slot.key, slot.recipe, size_mb)
        slot.resized(cores, size_mb)
        if slot.channel is not None:
            slot.channel.target = Target(slot.remote, version)

    async def create_shadow(self, body_id: str, pair: Pair) -> Instance:
        """Refuse: sandboxes share neither a machine nor memory."""
        del body_id, pair
        raise GnomonError(409, "no_such_body", "Lambda has no Shadows.", "Choose a policy that needs no Shadows, such as batch.")

    async def promote_shadow(self, shadow_id: str) -> Instance:
        """Refuse: Lambda has no Shadows."""
        raise GnomonError(409, "no_such_shadow", f"There is no Shadow {shadow_id}: Lambda has no Shadows.", "Decide again.")

    async def change_shadow(self, shadow_id: str, pair: Pair) -> None:
        """Do nothing: Lambda has no Shadows."""

    def profile(self, spec: FunctionSpec) -> ModelProfile | None:
        """Measurements of the function's model by memory size, in this region; None if there are none."""
        return self._measured.of(spec, self._recipes.find(spec), self._region)

    def usage(self, function: str) -> Usage:
        """Usage and cost of the function's Invokes, from their reports; memory is the sum of the peaks of its live slots."""
        spent = self._accounts.spent(function)
        used_mb = sum(slot.used_mb for slot in self._slots.values() if slot.instance.function == function)
        return Usage(spent.cpu_s, used_mb * MEGABYTE, spent.cost)

    def spent(self, function: str) -> UsageTotals:
        """The sums behind `usage`."""
        return self._accounts.spent(function)

    async def counted(self, function: str, begin: datetime, end: datetime) -> CloudWatchTotals:
        """CloudWatch's metrics of a function in this interval. They lag by minutes.

        Raises:
            GnomonError: 503 `aws_…`.

        """
        count = self._accounts.counted
        return await asyncio.get_running_loop().run_in_executor(
            self._control, count, self._clients.cloudwatch, function, begin, end
        )

    @property
    def _node(self) -> str:
        return f"lambda-{self._region}"

    def _check_account(self) -> None:
        self._region = self._clients.region
        with aws_errors("use this account"):
            identity = self._clients.sts.get_caller_identity()
        self._transfer.check()
        _LOG.info("functions run in account %s, region %s, as %s", identity["Account"], self._region, self._options.role)

    async def _start(self, slot: Slot, size_mb: int) -> None:
        try:
            version = await self._publisher.version(slot.key, slot.recipe, size_mb)
            channel = slot.channel = LambdaChannel(
                slot.instance.id,
                Target(slot.remote, version),
                slot.recipe.timeout_s,
                self._context,
                on_tail=lambda tail: self._accounts.enter(slot, tail),
                on_lost=slot.end,
            )
            await channel.hello(self._start_timeout_s)
        except Exception as error:  # noqa: BLE001 - whatever it is, the slot must not be waited for
            slot.end(f"could not be started: {error}")
        else:
            slot.ready(channel)

    def _ended(self, slot: Slot) -> None:
        del self._slots[slot.instance.id], self._specs[slot.instance.id]
        starting = self._starting.pop(slot.instance.id, None)
        if starting is not None and starting is not asyncio.current_task():
            starting.cancel()
        self._publisher.released(slot.remote)

    def _in_use(self, remote: str) -> bool:
        return any(slot.remote == remote for slot in self._slots.values())

    def _remove(self, keys: Sequence[str]) -> None:
        """Delete keys of finished transfers in S3, in the background."""
        self._begin(self._remove_in_background(list(keys)))

    async def _remove_in_background(self, keys: list[str]) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._control, self._transfer.remove, keys)
        except GnomonError as error:
            # The bucket's rule removes them tomorrow.
            _LOG.warning("%s of finished batches could not be deleted from the bucket yet: %s", many(len(keys), "object"), error)


@dataclass(frozen=True, slots=True)
class UsageTotals:
    """Usage since the platform's start. `cpu_s` is the granted CPU time: cores of the memory size × duration."""

    invokes: int = 0
    duration_s: float = 0.0
    billed_s: float = 0.0
    init_s: float = 0.0
    cold_starts: int = 0
    cpu_s: float = 0.0
    cost: float = 0.0
    """Dollars."""

    def plus(self, report: Report, storage_mb: int) -> UsageTotals:
        """Return the totals with one more Invoke."""
        billed_s = report.billed_ms / 1000
        return UsageTotals(
            invokes=self.invokes + 1,
            duration_s=self.duration_s + report.duration_ms / 1000,
            billed_s=self.billed_s + billed_s,
            init_s=self.init_s + report.init_ms / 1000,
            cold_starts=self.cold_starts + (report.init_ms > 0),
            cpu_s=self.cpu_s + (report.duration_ms + report.init_ms) / 1000 * cores_of(report.memory_mb),
            cost=self.cost + invoke_usd(billed_s, report.memory_mb, storage_mb),
        )


class InvokeAccounting:
    """The sums of each function, `name.namespace`. `on_report` gets what each Invoke took."""

    def __init__(self, on_report: Callable[[Report], None] | None) -> None:
        self._on_report = on_report
        self._spent: dict[str, UsageTotals] = {}
        self._remotes: dict[str, set[str]] = {}

    def opened(self, function: str, remote: str) -> None:
        """Record that the function is served by this function on Lambda."""
        self._remotes.setdefault(function, set()).add(remote)

    def enter(self, slot: Slot, tail: LogTail) -> None:
        """Account for an ended Invoke in this slot by the end of its log."""
        for line in tail.lines:
            slot.log(line)
        if tail.report is not None:
            function = slot.instance.function
            self._spent[function] = self.spent(function).plus(tail.report, slot.recipe.storage_mb)
            slot.used_mb = max(slot.used_mb, tail.report.used_mb)
            if self._on_report is not None:
                self._on_report(tail.report)

    def spent(self, function: str) -> UsageTotals:
        """The function's sums."""
        return self._spent.get(function, UsageTotals())

    def counted(self, client: Any, function: str, begin: datetime, end: datetime) -> CloudWatchTotals:
        """CloudWatch's metrics of all Lambda functions that this function has had. Blocks.

        Raises:
            GnomonError: 503 `aws_…`.

        """
        found = [counted(client, remote, begin, end) for remote in sorted(self._remotes.get(function, ()))]
        return CloudWatchTotals(
            sum(counts.invocations for counts in found),
            sum(counts.errors for counts in found),
            sum(counts.throttles for counts in found),
            sum(counts.duration_s for counts in found),
        )
