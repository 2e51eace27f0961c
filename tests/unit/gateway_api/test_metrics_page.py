"""The Prometheus page, by the names that dashboards use, and the CPU usage of a function."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceKind, InstanceState
from gnomon_core.functions import FunctionKey
from gnomon_core.interfaces import Usage
from gnomon_core.pairs import Pair
from gnomon_core.settings import read_settings
from gnomon_core.wire import Frame, Kind
from gnomon_gateway.api.access import ANY, ROUTES, pattern
from gnomon_gateway.api.functions import UsageMeter
from gnomon_gateway.metrics import (
    API_BOUNDS_S,
    MOST_CODES,
    PERIOD_S,
    ControlCounters,
    FunctionMetrics,
    FunctionReading,
    GatewayCollector,
    Histogram,
    LoopLag,
    MetricsPage,
)
from gnomon_gateway.queueing.queue import Batch, LaneKey, Request
from tests.virtual_clock import VirtualClock
from tests.waiting import until


def reading(name: str = "fn.openfaas-fn", labels: dict[str, str] | None = None) -> FunctionReading:
    metrics = FunctionMetrics()
    metrics.started = 5
    metrics.left = 1
    metrics.answered(200, 0.02)
    metrics.answered(200, 0.3)
    metrics.refused(GnomonError(429, "queue_full", "full"), 0.001)
    lane = LaneKey("events", "fn")
    requests = (Request(lane, 1.0, 9.0), Request(lane, 1.2, 9.0))
    metrics.sent(Batch(1, "i", lane, requests, 1.25))
    return FunctionReading(
        name, read_settings(labels, {}), metrics, replicas=3, ready=2, decisions=7, late=4, retried=2, policy_errors=1
    )


def samples(
    *readings: FunctionReading, control: ControlCounters | None = None, behind: bool = False
) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    collector = GatewayCollector(lambda: readings, control or ControlCounters(), Histogram((0.001,)), behind=behind)
    return series(asyncio.run(MetricsPage([collector])()))


def series(page: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


FN = ("function_name", "fn.openfaas-fn")


def test_metric_names_the_deciding_policy_and_whether_it_is_a_fallback() -> None:
    found = samples(replace(reading(), policy="fixed"))
    asked = read_settings(None, {}).autoscaler
    assert found["gnomon_scaling_policy", (("fallback", "true"), FN, ("policy", "fixed"))] == 1
    found = samples(replace(reading(), policy=asked))
    assert found["gnomon_scaling_policy", (("fallback", "false"), FN, ("policy", asked))] == 1


def test_openfaas_series_have_its_names_and_labels() -> None:
    found = samples(
        reading(labels={"com.openfaas.scale.min": "2", "com.openfaas.scale.type": "rps", "com.openfaas.scale.target": "50"})
    )
    assert found["gateway_function_invocation_total", (("code", "200"), FN)] == 2
    assert found["gateway_function_invocation_total", (("code", "429"), FN)] == 1
    assert found["gateway_function_invocation_started", (FN,)] == 5
    assert found["gateway_invocation_function_invocation_inflight", (FN,)] == 1
    assert found["gateway_functions_seconds_count", (("code", "200"), FN)] == 2
    assert found["gateway_functions_seconds_sum", (("code", "200"), FN)] == 0.32
    assert found["gateway_functions_seconds_bucket", (("code", "200"), FN, ("le", "0.025"))] == 1
    assert found["gateway_functions_seconds_bucket", (("code", "200"), FN, ("le", "+Inf"))] == 2
    assert found["gateway_service_count", (FN,)] == 3
    assert found["gateway_service_ready_count", (FN,)] == 2
    assert found["gateway_service_min", (FN,)] == 2
    assert found["gateway_service_target", (FN, ("scale_type", "rps"))] == 50


def test_batching_has_series_of_its_own() -> None:
    found = samples(reading())
    assert found["gnomon_batch_size_bucket", (FN, ("le", "1.0"))] == 0
    assert found["gnomon_batch_size_bucket", (FN, ("le", "2.0"))] == 1
    assert found["gnomon_queue_seconds_count", (FN,)] == 2
    assert round(found["gnomon_queue_seconds_sum", (FN,)], 6) == 0.3
    assert found["gnomon_rejections_total", (FN, ("reason", "queue_full"))] == 1
    assert found["gnomon_late_answers_total", (FN,)] == 4
    assert found["gnomon_retried_requests_total", (FN,)] == 2
    assert found["gnomon_scheduling_policy_errors_total", (FN,)] == 1
    assert found["gnomon_decisions_total", (FN,)] == 7


def test_unknown_control_requests_share_a_label() -> None:
    control = ControlCounters()
    control.observe("GET", pattern("/system/function/a", "GET"), 200, 0.01)
    control.observe("GET", pattern("/system/function/b", "GET"), 200, 0.01)
    control.observe("BREW", pattern("/coffee", "BREW"), 401, 0.01)
    found = samples(control=control)
    for prefix in ("", "provider_"):
        labels = (("code", "200"), ("method", "GET"), ("path", "/system/function/{name}"))
        assert found[f"{prefix}http_requests_total", labels] == 2
        assert found[f"{prefix}http_requests_total", (("code", "401"), ("method", "other"), ("path", "unknown"))] == 1
        assert found[f"{prefix}http_request_duration_seconds_count", labels] == 2


def test_metrics_page_is_bounded_for_unknown_routes() -> None:
    control = ControlCounters()
    control.observe("GET", pattern("/system/functions", "GET"), 200, 0.01)
    before = len(samples(control=control))
    for method in (*ANY, "TRACE", "CONNECT", "BREW"):
        for route in ROUTES:
            path = re.sub(r"\{\w+\}…?", "x", route.path)
            for status in (401, 403, 404 if method not in route.methods else 401):
                control.observe(method, pattern(path, method), status, 0.01)
    grown = len(samples(control=control)) - before
    per_code = 2 * (len(API_BOUNDS_S) + 4)
    assert grown == 3 * per_code, "one series for each status, whatever the methods and paths"


def test_metrics_page_is_bounded_for_status_codes() -> None:
    shown = reading()
    for code in range(200, 600):
        shown.metrics.answered(code, 0.01)
    answered = {labels: count for (name, labels), count in samples(shown).items() if name == "gateway_function_invocation_total"}
    assert len(answered) <= MOST_CODES + 4
    assert sum(answered.values()) == shown.metrics.invocations


async def test_a_long_page_gives_the_loop_away_and_is_whole() -> None:
    many = [reading(f"f{number}.openfaas-fn") for number in range(100)]
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other_tasks = asyncio.create_task(others())
    found = series(await MetricsPage([GatewayCollector(lambda: many, ControlCounters(), Histogram((0.001,)))])())
    other_tasks.cancel()
    assert turns > 20
    assert all(found["gateway_service_count", (("function_name", function.name),)] == 3 for function in many)


async def test_concurrent_scrapes_share_a_page_and_later_ones_see_new_counts() -> None:
    rendered, shown = 0, reading()

    def readings() -> list[FunctionReading]:
        nonlocal rendered
        rendered += 1
        return [shown]

    page = MetricsPage([GatewayCollector(readings, ControlCounters(), Histogram((0.001,)))])
    first = asyncio.gather(*(page() for _ in range(10)))
    await until(lambda: rendered)
    shown.metrics.answered(200, 0.02)
    later = asyncio.gather(*(page() for _ in range(10)))
    assert len(set(await first)) == 1
    code = "gateway_function_invocation_total", (("code", "200"), FN)
    assert {series(page)[code] for page in await later} == {3}
    assert rendered == 2


def test_a_page_without_functions_is_still_one() -> None:
    assert ("gnomon_event_loop_lag_seconds_count", ()) in samples()


def test_bodies_shadows_and_what_pairs_did() -> None:
    shown = reading()
    assert not any(name.startswith(("gnomon_pair", "gnomon_shadow")) for name, _ in samples(shown))
    pair = Pair(1, (1,), (0, 1))
    lane = LaneKey("tensors", "fn")
    good = [{"outcome": "answered", "samples": 1, "waited_ms": 2.0}, {"outcome": "answered", "samples": 1, "waited_ms": 1.0}]
    odd = [{"outcome": "answered", "samples": 900, "waited_ms": 1e999}, {"outcome": "late", "samples": 1}, {"outcome": "x"}, 7]
    odd += [{"outcome": [], "samples": 1}, {"outcome": "late", "samples": True}]
    for took_s, said in ((0.08, good), (0.32, odd), (0.2, "nothing")):
        batch = Batch(1, "i", lane, (Request(lane, 1.0, 9.0), Request(lane, 1.0, 9.0)), 1.0)
        batch.pair, batch.expected_end_s = pair, 1.2
        shown.metrics.pairs.done(batch, Frame(Kind.RESULT, head=json.dumps({"pair": said}).encode()), 1.0 + took_s)
    for head in (b"no json", b'{"pair":' + b"[" * 50_000, b" " * 2**20):
        shown.metrics.pairs.done(batch, Frame(Kind.RESULT, head=head), 1.2)
    known = ("fn.openfaas-fn", 1, "n", 1, 1)
    instances = (
        Instance("b-1", *known, InstanceState.READY, 0.0),
        Instance("b-2", *known, InstanceState.STARTING, 0.0),
        Instance("s-1", *known, InstanceState.READY, 0.0, kind=InstanceKind.SHADOW),
    )
    found = samples(replace(shown, instances=instances))
    assert found["gnomon_instances", (FN, ("kind", "body"), ("state", "ready"))] == 1
    assert found["gnomon_instances", (FN, ("kind", "shadow"), ("state", "ready"))] == 1
    assert found["gnomon_pair_batches_total", (FN,)] == 6
    assert found["gnomon_offloaded_samples_total", (FN,)] == 3, "an instance may claim anything, at most its batch is believed"
    assert found["gnomon_hand_overs_total", (FN, ("outcome", "answered"))] == 3
    assert found["gnomon_hand_overs_total", (FN, ("outcome", "late"))] == shown.metrics.pairs.misses == 1
    assert found["gnomon_shadow_waited_seconds_total", (FN,)] == 0.003
    assert round(found["gnomon_pair_predicted_seconds_total", (FN,)], 9) == 1.2
    assert round(found["gnomon_pair_measured_seconds_total", (FN,)], 9) == 1.2
    assert found["gnomon_pair_latency_ratio_bucket", (FN, ("le", "0.5"))] == 1
    assert found["gnomon_pair_latency_ratio_bucket", (FN, ("le", "2.0"))] == 6


async def test_loop_lag_is_how_late_a_sleeper_wakes() -> None:
    clock = VirtualClock()
    lag = LoopLag(clock)
    lag.start()
    await clock.advance(PERIOD_S)
    assert lag.histogram.counts[0] == 1
    assert lag.histogram.total == 0.0
    await lag.stop()


async def test_a_blocked_loop_shows() -> None:
    class Late:
        now = 0.0

        def now_s(self) -> float:
            return self.now

        async def sleep(self, duration_s: float) -> None:
            if self.now:
                await asyncio.Event().wait()
            self.now += duration_s + 0.03

    lag = LoopLag(Late())
    lag.start()
    for _ in range(5):
        await asyncio.sleep(0)
    await lag.stop()
    assert round(lag.histogram.total, 9) == 0.03
    assert sum(lag.histogram.counts[:6]) == 0


def test_no_series_is_exported_twice_behind_a_stock_gateway() -> None:
    stock = {"gateway_function_invocation_total", "gateway_function_invocation_started", "gateway_service_count"}
    alone, behind = ({name for name, _ in samples(reading(), behind=behind)} for behind in (False, True))
    assert stock <= alone
    assert not {name for name in behind if name in stock or name.startswith(("gateway_functions_seconds", "http_"))}
    assert {"gnomon_batch_size_count", "gateway_service_ready_count"} <= behind


KEY = FunctionKey("fn")


def test_usage_is_thousandths_of_a_core_since_the_last_question() -> None:
    now_s = [10.0]
    meter = UsageMeter(lambda: now_s[0])
    assert meter.document(KEY, Usage(5.0, 1 << 20)) == {"cpu": 0.0, "totalMemoryBytes": 1 << 20}
    now_s[0] = 12.0
    assert meter.document(KEY, Usage(5.5, 1 << 20))["cpu"] == 250.0
    assert meter.document(KEY, Usage(5.5, 1 << 20))["cpu"] == 0.0, "no time has passed"
    now_s[0] = 13.0
    assert meter.document(KEY, Usage(1.0, 1 << 20))["cpu"] == 0.0, "a new function by the same name began at nothing"
