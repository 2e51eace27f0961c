"""Metrics: the counters of functions, and the Prometheus page that reads them at a scrape.

A function's counters are plain Python, a few hundred nanoseconds a request; nothing is labelled, locked or formatted before a
scrape. Metrics of pairs are counted from the Bodies' own reports: the head of a result that a pair computed has a list under
"pair", an entry for each hand-over, with the number of samples, how it ended (`outcome`) and its times. A Body runs a user's
model, so its report is not trusted: no more samples than the batch had, only known outcomes, only finite times.

The page is rendered on the event loop, whose counters have no locks, in slices of a millisecond between which other work runs.
Concurrent scrapes share the next page, and rendering takes a bounded share of the loop's time. `gateway_*` and `http_*` are
OpenFaaS's series, `provider_http_*` its providers', `gnomon_*` Gnomon's own. `function_name` is always `name.namespace`.

Event loop lag (`LoopLag`) shows whether something blocks the loop: a task sleeps and measures how late it wakes. Code that ran
too long in between delayed every request by as much.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from itertools import accumulate, islice
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric, UnknownMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from gnomon_core.clock import Clock
from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance
from gnomon_core.settings import Settings
from gnomon_core.wire import Frame, WireError
from gnomon_gateway.queueing.queue import Batch


class Histogram:
    """Counts by upper bound. `counts` are per bucket, not cumulative; the last is for everything above the last bound."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def add(self, other: Histogram) -> None:
        """Add the counts of a histogram with the same bounds."""
        self.counts = [count + other_count for count, other_count in zip(self.counts, other.counts, strict=True)]
        self.total += other.total


ANSWERED = "answered"
OUTCOMES = (ANSWERED, "late", "hurried", "failed", "refused", "nonsense", "full", "gone")
"""The outcomes of a hand-over. After all but the first, the Body has computed the Shadow's samples itself."""
RATIO_BOUNDS = (0.5, 0.75, 0.9, 0.95, 1.05, 1.1, 1.25, 1.5, 2.0, 3.0)
_LONGEST_MS = 1e9
_MOST_HEAD_BYTES = 1 << 16
"""A hand-over takes some 150 bytes. A longer list is not parsed, because it would block the event loop."""


class PairMetrics:
    """The counters of one function's pairs.

    `batches` were sent to a Body with a Shadow, which computed `offloaded` of their samples. `hand_overs` counts hand-overs by
    outcome, `waited_s` the time that Bodies waited. `predicted_s` and `measured_s` are the summed latencies of the
    same batches, and `ratios` the histogram of measured by predicted latency.
    """

    __slots__ = ("batches", "hand_overs", "measured_s", "offloaded", "predicted_s", "ratios", "waited_s")

    def __init__(self) -> None:
        self.batches = 0
        self.offloaded = 0
        self.hand_overs = dict.fromkeys(OUTCOMES, 0)
        self.waited_s = 0.0
        self.predicted_s = 0.0
        self.measured_s = 0.0
        self.ratios = Histogram(RATIO_BOUNDS)

    @property
    def misses(self) -> int:
        """Hand-overs that a Shadow did not answer as it should have."""
        return sum(self.hand_overs.values()) - self.hand_overs[ANSWERED]

    def add(self, other: PairMetrics) -> None:
        """Add the counters of other pairs."""
        self.batches += other.batches
        self.offloaded += other.offloaded
        self.waited_s += other.waited_s
        self.predicted_s += other.predicted_s
        self.measured_s += other.measured_s
        for outcome, count in other.hand_overs.items():
            self.hand_overs[outcome] += count
        self.ratios.add(other.ratios)

    def done(self, batch: Batch, result: Frame, now_s: float) -> None:
        """Count the result of a pair's batch."""
        self.batches += 1
        offloaded: dict[str, int] = {}
        """The largest hand-over of each Shadow in this batch: a batch has one hand-over for each run."""
        for hand_over in _hand_overs(result):
            outcome, samples, waited_ms = str(hand_over.get("outcome")), hand_over.get("samples"), hand_over.get("waited_ms")
            if outcome not in self.hand_overs or type(samples) is not int:
                continue
            self.hand_overs[outcome] += 1
            if outcome == ANSWERED:
                shadow = str(hand_over.get("shadow"))
                offloaded[shadow] = max(offloaded.get(shadow, 0), samples)
            if isinstance(waited_ms, int | float) and 0 <= waited_ms < _LONGEST_MS:
                self.waited_s += waited_ms / 1e3
        self.offloaded += max(0, min(sum(offloaded.values()), batch.size))
        predicted_s, measured_s = batch.expected_end_s - batch.sent_s, now_s - batch.sent_s
        if predicted_s > 0:
            self.predicted_s += predicted_s
            self.measured_s += measured_s
            self.ratios.observe(measured_s / predicted_s)


def _hand_overs(result: Frame) -> list[Mapping[str, Any]]:
    if len(result.head) > _MOST_HEAD_BYTES:
        return []
    try:
        found = result.head_json().get("pair")
    except (WireError, RecursionError):
        return []
    return [hand_over for hand_over in found if isinstance(hand_over, dict)] if isinstance(found, list) else []


BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""The upper bounds of prometheus_client's default histogram."""
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
MOST_CODES = 20
"""The most status codes of a function that are counted separately: each costs 17 lines of the metrics page."""
QUEUE_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(slots=True)
class CodeMetrics:
    """The answers with one status code. `buckets` are counts per bucket, not cumulative; the last is for everything longer."""

    count: int
    sum_s: float
    buckets: list[int]


class FunctionMetrics:
    """The counters of one function.

    `started` counts received requests, `left` those whose client disconnected before the answer. `by_code` holds count and
    durations of the answers by status code, the function's and the gateway's alike; `rejections` counts the gateway's by error
    code. `batch_sizes` are the samples of the batches sent, `queue_s` the waiting times of their members; `pairs` are the
    counters of batches with Shadows.
    """

    __slots__ = ("batch_sizes", "by_code", "left", "pairs", "queue_s", "rejections", "started")

    def __init__(self) -> None:
        self.started = 0
        self.left = 0
        self.by_code: dict[int, CodeMetrics] = {}
        self.rejections: dict[str, int] = {}
        self.batch_sizes = Histogram(BATCH_SIZES)
        self.queue_s = Histogram(QUEUE_BOUNDS_S)
        self.pairs = PairMetrics()

    def sent(self, batch: Batch) -> None:
        """Count a batch that is sent to an instance."""
        self.batch_sizes.observe(batch.size)
        for request in batch.requests:
            self.queue_s.observe(batch.sent_s - request.arrived_s)

    def refused(self, error: GnomonError, duration_s: float) -> None:
        """Count an error with which the platform answered instead of the function."""
        self.rejections[error.code] = self.rejections.get(error.code, 0) + 1
        self.answered(error.status, duration_s)

    def answered(self, code: int, duration_s: float) -> None:
        """Count an answer that was written. Beyond `MOST_CODES`, a new code counts as the first of its class: 418 as 400."""
        metrics = self.by_code.get(code)
        if metrics is None and len(self.by_code) >= MOST_CODES:
            code = code // 100 * 100
            metrics = self.by_code.get(code)
        if metrics is None:
            metrics = self.by_code[code] = CodeMetrics(0, 0.0, [0] * (len(BUCKETS_S) + 1))
        metrics.count += 1
        metrics.sum_s += duration_s
        metrics.buckets[bisect_left(BUCKETS_S, duration_s)] += 1

    def add(self, other: FunctionMetrics) -> None:
        """Add the counters of another function: of a member, to its application's."""
        self.started += other.started
        self.left += other.left
        for code, metrics in other.by_code.items():
            mine = self.by_code.setdefault(code, CodeMetrics(0, 0.0, [0] * (len(BUCKETS_S) + 1)))
            mine.count += metrics.count
            mine.sum_s += metrics.sum_s
            mine.buckets = [own_count + other_count for own_count, other_count in zip(mine.buckets, metrics.buckets, strict=True)]
        for reason, count in other.rejections.items():
            self.rejections[reason] = self.rejections.get(reason, 0) + count
        self.batch_sizes.add(other.batch_sizes)
        self.queue_s.add(other.queue_s)
        self.pairs.add(other.pairs)

    @property
    def invocations(self) -> int:
        """The number of answered requests."""
        return sum(metrics.count for metrics in self.by_code.values())


_TURNED_AWAY = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


API_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class ControlCounters:
    """Durations by (method, route, status).

    Clients choose paths and methods freely, so unknown routes and requests refused before their handler share one label.
    """

    def __init__(self) -> None:
        self.durations: dict[tuple[str, str, int], Histogram] = {}

    def observe(self, method: str, route: str | None, status: int, duration_s: float) -> None:
        """Count a response. `route` is the pattern of the request's path, None for an unknown route."""
        key = (method, route, status) if route and status not in _TURNED_AWAY else ("other", "unknown", status)
        self.durations.setdefault(key, Histogram(API_BOUNDS_S)).observe(duration_s)


SLICE_S = 0.001
"""The longest time for which rendering the page blocks the event loop, in seconds."""
SHARE = 0.2
"""The largest share of the event loop's time that rendering may take."""
_FUNCTIONS_AT_ONCE = 4
_SAMPLES_AT_ONCE = 50
_FUNCTION = ("function_name",)
STOCK_GATEWAY_SERIES = frozenset(
    {
        "gateway_function_invocation",
        "gateway_function_invocation_started",
        "gateway_functions_seconds",
        "gateway_service_count",
        "http_requests",
        "http_request_duration_seconds",
    }
)
"""The series that OpenFaaS's own gateway exports."""


@dataclass(frozen=True, slots=True)
class FunctionReading:
    """A function at the time of a scrape. `replicas` are desired, `ready` can take requests.

    Totals are `decisions`, `late` answers, `retried` requests and `policy_errors` of the scheduling policy. `instances` are
    Bodies and Shadows. `policy` is the scaling policy that made the last decision, empty before the first one.
    """

    name: str
    settings: Settings
    metrics: FunctionMetrics
    replicas: int
    ready: int
    decisions: int
    late: int
    retried: int
    policy_errors: int
    instances: Sequence[Instance] = ()
    policy: str = ""


class GatewayCollector(Collector):
    """The Prometheus collector of functions, control routes and event loop lag.

    `behind` a stock gateway, the series that the stock gateway exports too are omitted: Prometheus scrapes both, and a sum over
    one name would count each invocation twice.
    """

    def __init__(
        self,
        functions: Callable[[], Iterable[FunctionReading]],
        control: ControlCounters,
        loop_lag: Histogram,
        *,
        behind: bool = False,
    ) -> None:
        self._functions = functions
        self._behind = behind
        self._control = control
        self._loop_lag = loop_lag

    def collect(self) -> Iterator[Metric]:
        return (family for family in self._collected() if not (self._behind and family.name in STOCK_GATEWAY_SERIES))

    def _collected(self) -> Iterator[Metric]:
        functions = iter(self._functions())
        readings: tuple[FunctionReading, ...] = ()
        while True:
            # The first round has no readings: a page without functions lists at least the names of the series.
            yield from _invocations(readings)
            yield from _services(readings)
            yield from _batching(readings)
            yield from _pairs(readings)
            readings = tuple(islice(functions, _FUNCTIONS_AT_ONCE))
            if not readings:
                break
        yield from _control(self._control)
        lag = HistogramMetricFamily("gnomon_event_loop_lag_seconds", "Delay of timers on the gateway's event loop, in seconds.")
        _add(lag, (), self._loop_lag)
        yield lag


class MetricsPage:
    """The metrics page of these collectors. A collector may yield one metric in parts, each a family of the same name."""

    def __init__(self, collectors: Iterable[Collector]) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self._registry)
        for collector in collectors:
            self._registry.register(collector)
        # `_next` has not begun to read the counters, so that a scrape may join it; `_last` has, and may have ended.
        self._next: asyncio.Task[bytes] | None = None
        self._last: asyncio.Task[bytes] | None = None
        self._due_s = 0.0

    async def __call__(self) -> bytes:
        """The page with all counts up to this call. Concurrent calls share a rendering that has not begun yet."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._render(self._last))
        return await asyncio.shield(self._next)

    async def _render(self, before: asyncio.Task[bytes] | None) -> bytes:
        if before is not None:
            await asyncio.wait([before])
        await asyncio.sleep(max(0.0, self._due_s - time.monotonic()))
        # A later scrape must see later counts: it waits for the next rendering.
        self._last, self._next = self._next, None
        # The thread's own time: what other tasks do between the slices is not this page's cost.
        page, took_s, began_s = _Page(), 0.0, time.thread_time()
        for _ in self._steps(page):
            slice_s = time.thread_time() - began_s
            if slice_s > SLICE_S:
                took_s += slice_s
                await asyncio.sleep(0)
                began_s = time.thread_time()
        took_s += time.thread_time() - began_s
        self._due_s = time.monotonic() + took_s * (1 / SHARE - 1)
        return page.text()

    def _steps(self, page: _Page) -> Iterator[None]:
        for metric in self._registry.collect():
            samples, metric.samples = iter(metric.samples), []
            while True:
                metric.samples = list(islice(samples, _SAMPLES_AT_ONCE))
                page.add(metric)
                yield
                if len(metric.samples) < _SAMPLES_AT_ONCE:
                    break


class _Page:
    """The rendered metrics by name: the exposition format wants all samples of a metric together, below one heading."""

    def __init__(self) -> None:
        self._headings: dict[str, bytes] = {}
        self._lines: dict[str, list[bytes]] = {}

    def add(self, metric: Metric) -> None:
        comment, kind, lines = generate_latest(_Only(metric)).split(b"\n", 2)
        self._headings.setdefault(metric.name, comment + b"\n" + kind + b"\n")
        self._lines.setdefault(metric.name, []).append(lines)

    def text(self) -> bytes:
        return b"".join(heading + b"".join(self._lines[name]) for name, heading in self._headings.items())


class _Only(Collector):
    """A collector of a single metric, because `generate_latest` takes a collector."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


def _invocations(readings: Sequence[FunctionReading]) -> Iterator[Metric]:
    by_code = (*_FUNCTION, "code")
    answered = CounterMetricFamily(
        "gateway_function_invocation", "Answered invocations by function and status code.", labels=by_code
    )
    # OpenFaaS counts these under a name without `_total`, which a counter of this library cannot have.
    started = UnknownMetricFamily("gateway_function_invocation_started", "Invocations that were received.", labels=_FUNCTION)
    inflight = GaugeMetricFamily("gateway_invocation_function_invocation_inflight", "Invocations in flight.", labels=_FUNCTION)
    seconds = HistogramMetricFamily(
        "gateway_functions_seconds", "Time from a request's arrival to its answer, in seconds.", labels=by_code
    )
    for reading in readings:
        metrics = reading.metrics
        started.add_metric((reading.name,), metrics.started)
        inflight.add_metric((reading.name,), metrics.started - metrics.invocations - metrics.left)
        for code, answers in sorted(metrics.by_code.items()):
            labels = (reading.name, str(code))
            answered.add_metric(labels, answers.count)
            seconds.add_metric(labels, _buckets(BUCKETS_S, answers.buckets), answers.sum_s)
    yield from (answered, started, inflight, seconds)


def _services(readings: Sequence[FunctionReading]) -> Iterator[Metric]:
    count = GaugeMetricFamily("gateway_service_count", "Desired instances.", labels=_FUNCTION)
    ready = GaugeMetricFamily("gateway_service_ready_count", "Instances that can take requests.", labels=_FUNCTION)
    fewest = GaugeMetricFamily("gateway_service_min", "The label com.openfaas.scale.min.", labels=_FUNCTION)
    target = GaugeMetricFamily(
        "gateway_service_target", "The load per instance that scaling aims at.", labels=(*_FUNCTION, "scale_type")
    )
    decisions = CounterMetricFamily("gnomon_decisions", "Decisions of the scaling policy.", labels=_FUNCTION)
    policies = GaugeMetricFamily(
        "gnomon_scaling_policy",
        "1 for the scaling policy that decides now; fallback says whether it stands in for another one, which failed.",
        labels=(*_FUNCTION, "policy", "fallback"),
    )
    for reading in readings:
        scale = reading.settings.scale
        count.add_metric((reading.name,), reading.replicas)
        ready.add_metric((reading.name,), reading.ready)
        fewest.add_metric((reading.name,), scale.min)
        decisions.add_metric((reading.name,), reading.decisions)
        if scale.type is not None:
            target.add_metric((reading.name, scale.type), scale.target)
        if reading.policy:
            fallback = "false" if reading.policy == reading.settings.autoscaler else "true"
            policies.add_metric((reading.name, reading.policy, fallback), 1)
    yield from (count, ready, fewest, target, decisions, policies)


def _batching(readings: Sequence[FunctionReading]) -> Iterator[Metric]:
    sizes = HistogramMetricFamily("gnomon_batch_size", "Samples of the batches that were sent.", labels=_FUNCTION)
    queued = HistogramMetricFamily(
        "gnomon_queue_seconds", "Time that requests waited in the queue, in seconds.", labels=_FUNCTION
    )
    rejections = CounterMetricFamily("gnomon_rejections", "Refused requests by reason.", labels=(*_FUNCTION, "reason"))
    late = CounterMetricFamily("gnomon_late_answers", "Answers that came after the deadline and were dropped.", labels=_FUNCTION)
    retried = CounterMetricFamily(
        "gnomon_retried_requests",
        "Idempotent requests that were executed a second time, each in a batch of its own.",
        labels=_FUNCTION,
    )
    errors = CounterMetricFamily(
        "gnomon_scheduling_policy_errors", "Exceptions and invalid batches of the scheduling policy.", labels=_FUNCTION
    )
    for reading in readings:
        _add(sizes, (reading.name,), reading.metrics.batch_sizes)
        _add(queued, (reading.name,), reading.metrics.queue_s)
        late.add_metric((reading.name,), reading.late)
        retried.add_metric((reading.name,), reading.retried)
        errors.add_metric((reading.name,), reading.policy_errors)
        for reason, number in sorted(reading.metrics.rejections.items()):
            rejections.add_metric((reading.name, reason), number)
    yield from (sizes, queued, rejections, late, retried, errors)


def _pairs(readings: Sequence[FunctionReading]) -> Iterator[Metric]:
    """Metrics of Bodies and Shadows; pair counters only for functions that have run a batch with a Shadow."""
    instances = GaugeMetricFamily(
        "gnomon_instances", "Instances by kind (body or shadow) and state.", labels=(*_FUNCTION, "kind", "state")
    )
    batches = CounterMetricFamily("gnomon_pair_batches", "Batches of Bodies that had a Shadow.", labels=_FUNCTION)
    offloaded = CounterMetricFamily("gnomon_offloaded_samples", "Samples that Shadows computed.", labels=_FUNCTION)
    hand_overs = CounterMetricFamily(
        "gnomon_hand_overs", "Hand-overs of a share of a batch to a Shadow, by outcome.", labels=(*_FUNCTION, "outcome")
    )
    waited = CounterMetricFamily(
        "gnomon_shadow_waited_seconds", "Time that Bodies waited for results of their Shadows, in seconds.", labels=_FUNCTION
    )
    predicted = CounterMetricFamily(
        "gnomon_pair_predicted_seconds", "Predicted execution time of batches of pairs, in seconds.", labels=_FUNCTION
    )
    measured = CounterMetricFamily("gnomon_pair_measured_seconds", "What they took.", labels=_FUNCTION)
    ratios = HistogramMetricFamily(
        "gnomon_pair_latency_ratio", "Measured latency of pairs divided by the predicted latency.", labels=_FUNCTION
    )
    for reading in readings:
        counts = Counter((instance.kind.value, instance.state.value) for instance in reading.instances)
        for (kind, state), count in sorted(counts.items()):
            instances.add_metric((reading.name, kind, state), count)
        pairs, name = reading.metrics.pairs, (reading.name,)
        if pairs.batches:
            batches.add_metric(name, pairs.batches)
            offloaded.add_metric(name, pairs.offloaded)
            for outcome, count in pairs.hand_overs.items():
                hand_overs.add_metric((*name, outcome), count)
            waited.add_metric(name, pairs.waited_s)
            predicted.add_metric(name, pairs.predicted_s)
            measured.add_metric(name, pairs.measured_s)
            _add(ratios, name, pairs.ratios)
    yield from (instances, batches, offloaded, hand_overs, waited, predicted, measured, ratios)


def _control(counters: ControlCounters) -> Iterator[Metric]:
    labels = ("code", "method", "path")
    for prefix in ("", "provider_"):
        total = CounterMetricFamily(f"{prefix}http_requests", "Requests of the control routes.", labels=labels)
        seconds = HistogramMetricFamily(
            f"{prefix}http_request_duration_seconds", "Latency of HTTP requests to the control routes, in seconds.", labels=labels
        )
        for (method, path, status), durations in sorted(counters.durations.items()):
            values = (str(status), method, path)
            total.add_metric(values, sum(durations.counts))
            _add(seconds, values, durations)
        yield from (total, seconds)


def _add(family: HistogramMetricFamily, labels: Sequence[str], histogram: Histogram) -> None:
    family.add_metric(labels, _buckets(histogram.bounds, histogram.counts), histogram.total)


def _buckets(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Cumulative counts by bound, as Prometheus wants them: counts 2, 3 and 1 are 2, 5 and 6."""
    names = [*map(floatToGoString, bounds), "+Inf"]
    return list(zip(names, accumulate(counts), strict=True))


PERIOD_S = 0.1
LAG_BOUNDS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)


class LoopLag:
    """A sampler of the lag of the event loop on which it is started."""

    def __init__(self, clock: Clock) -> None:
        self.histogram = Histogram(LAG_BOUNDS_S)
        self._clock = clock
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._sample())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _sample(self) -> None:
        while True:
            begin_s = self._clock.now_s()
            await self._clock.sleep(PERIOD_S)
            self.histogram.observe(max(0.0, self._clock.now_s() - begin_s - PERIOD_S))
