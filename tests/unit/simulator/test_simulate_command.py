"""`simulate` as a command: its figures, its progress, and the comparison of a recorded stretch with its simulation."""

import io
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from benchmarks.parity.recording import compare, read_recording
from benchmarks.simulation.opt import most_instances
from gnomon_core.errors import GnomonError
from gnomon_core.settings import ScaleSettings, Settings
from gnomon_simulator.arrivals import constant
from gnomon_simulator.commands import ArrivalOptions, Progress, SimulateOptions, progress_text, simulate
from gnomon_simulator.profiles import Noise, read_profile
from gnomon_simulator.profiles import constant as constant_profile
from gnomon_simulator.replay_report import Outcome, Report, Samples
from gnomon_simulator.results import FunctionResult
from gnomon_simulator.simulated_platform import NodePlan
from gnomon_simulator.simulation import FunctionPlan
from gnomon_simulator.simulation import simulate as simulate_plans
from gnomon_simulator.simulation import simulate as simulated_run
from tests.made_up_models import BlockPlan, made_up_profile
from tests.refusals import refused
from tests.unit.simulator.test_simulation import settings

TRACE = "t_seconds,count\n" + "".join(f"{second},{20 + second % 5}\n" for second in range(60))


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    return path


def figures(options: SimulateOptions) -> Any:
    out = io.StringIO()
    assert simulate(options, out) == 0
    return json.loads(out.getvalue())


def test_a_trace_is_simulated_once_for_each_scheduler(trace: Path, tmp_path: Path) -> None:
    options = SimulateOptions(
        ArrivalOptions(trace=trace, start_s=10.0, duration_s=30.0, scale=2.0),
        labels={"com.openfaas.scale.max": "8"},
        annotations={"gnomon/autoscaler": "od", "gnomon/slo-ms": "500", "gnomon/max-batch": "4"},
        service_s=0.05,
        schedulers=("adaptive", "immediate"),
        warm=2,
        requests=tmp_path / "requests.jsonl",
        json=True,
    )
    first, second = figures(options)
    assert (first["scheduler"], second["scheduler"]) == ("adaptive", "immediate")
    assert first["requests"] == second["requests"] == sum(2 * (20 + at % 5) for at in range(10, 40))
    assert first["autoscaler"] == "od"
    assert first["decisions"][0]["reason"]
    assert len((tmp_path / "requests.jsonl").read_text().splitlines()) == second["requests"]
    assert figures(options) == [first, second]


def test_without_a_scheduler_it_is_the_scaling_policy_s_own() -> None:
    options = SimulateOptions(
        ArrivalOptions(poisson_rps=20.0, duration_s=5.0), annotations={"gnomon/autoscaler": "k-lv"}, service_s=0.01, json=True
    )
    assert figures(options)[0]["scheduler"] == "adaptive"


def test_a_profile_gives_the_speed(tmp_path: Path) -> None:
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps({"variant": "v", "latency_s": {"1": {"1": 0.04}}}))
    options = SimulateOptions(ArrivalOptions(rate_rps=5.0, duration_s=5.0), profile=profile, warm=1, json=True)
    assert figures(options)[0]["latency_ms"]["p50"] == pytest.approx(40.0)


def test_the_table_is_what_people_get() -> None:
    out = io.StringIO()
    simulate(SimulateOptions(ArrivalOptions(rate_rps=5.0, duration_s=1.0), service_s=0.01), out)
    assert "violations" in out.getvalue()


@pytest.mark.parametrize(
    "arrivals",
    [
        ArrivalOptions(),
        ArrivalOptions(poisson_rps=1.0, rate_rps=1.0, duration_s=1.0),
        ArrivalOptions(rate_rps=1.0),
        ArrivalOptions(rate_rps=1.0, duration_s=0.0),
        ArrivalOptions(rate_rps=1.0, duration_s=1.0, scale=0.0),
    ],
)
def test_arrivals_come_from_exactly_one_source(arrivals: ArrivalOptions) -> None:
    with pytest.raises(GnomonError) as refused:
        simulate(SimulateOptions(arrivals, service_s=0.1))
    assert refused.value.hint


def test_a_declared_serial_fraction_gives_the_speed_of_cores_that_were_not_measured(tmp_path: Path) -> None:
    """100 ms on 2 cores, 5 % serial: 8 take 100·(0.05 + 0.95/4) = 28.75 ms."""
    variant, model = tmp_path / "variant.json", tmp_path / "model.json"
    variant.write_text(json.dumps({"variant": "v", "latency_s": {"2": {"1": 0.1}}}))
    model.write_text(json.dumps(made_up_profile((BlockPlan(1.0, 10**6),), (0.2,), cores=(1, 2)).to_json()))
    for profile in (variant, model):
        options = SimulateOptions(
            ArrivalOptions(rate_rps=1.0, duration_s=5.0), annotations={"gnomon/cores": "8"}, profile=profile,
            serial_fraction=0.05, warm=1, json=True,
        )  # fmt: skip
        assert figures(options)[0]["latency_ms"]["p50"] == pytest.approx(28.75)


@pytest.mark.parametrize("speed", [{}, {"service_s": 0.0}, {"service_s": 0.1, "profile": Path("p.json")}])
def test_speed_comes_from_exactly_one_source(speed: Any) -> None:
    with pytest.raises(GnomonError):
        simulate(SimulateOptions(ArrivalOptions(rate_rps=1.0, duration_s=1.0), **speed))


def test_a_serial_fraction_is_of_a_profile_alone() -> None:
    options = SimulateOptions(ArrivalOptions(rate_rps=1.0, duration_s=1.0), service_s=0.1, serial_fraction=0.05)
    with refused(code="bad_profile", match="a time per request"):
        simulate(options, begun=lambda: pytest.fail("what is refused has not begun"))
    calls: list[str] = []
    simulate(replace(options, serial_fraction=None), io.StringIO(), begun=lambda: calls.append("begun"))
    assert calls == ["begun"]


@pytest.mark.parametrize("cv", [float("nan"), float("inf"), -0.1])
def test_a_spread_that_is_no_number_is_refused(cv: float) -> None:
    with refused(code="bad_noise", match="coefficient of variation"):
        Noise("lognormal", cv)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "[1]", "{", '{"variant": "x", "latency_s": {"1": {"1": 0.01}}, "noise": {"cv": NaN}}']
)
def test_a_profile_that_cannot_be_read_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "profile.json").write_text(text)
    with pytest.raises(GnomonError) as caught:
        read_profile(tmp_path / "profile.json")
    assert caught.value.status == 400


def test_a_declared_network_lets_shadows_be_on_other_nodes(tmp_path: Path) -> None:
    """A Body fills its node and sustains 2 rps; 3 come. Without a price for the way there is nothing to be done."""
    path = tmp_path / "model.json"
    model = made_up_profile((BlockPlan(1.0, 10**6),), (0.5, 1.0, 1.5, 2.0), border_bytes=10**6)
    path.write_text(json.dumps(model.to_json()))
    annotations = {"gnomon/autoscaler": "asyfunc", "gnomon/slo-ms": "4000", "gnomon/max-batch": "4", "gnomon/max-cores": "1"}

    def shadows(network_gbps: float | None = None, network_rtt_ms: float = 0.0) -> int:
        options = SimulateOptions(
            ArrivalOptions(rate_rps=3.0, duration_s=5.0), {"com.openfaas.scale.max": "1"}, annotations, path,
            nodes=2, node_cores=1, network_gbps=network_gbps, network_rtt_ms=network_rtt_ms, warm=1, json=True,
        )  # fmt: skip
        return int(figures(options)[0]["shadows"])

    assert shadows() == 0
    assert shadows(network_gbps=10.0, network_rtt_ms=0.2) == 1
    # A second for each megabyte is more than the Shadow saves.
    assert shadows(network_gbps=0.008) == 0
    for gbps, rtt_ms in ((0.0, 0.0), (1.0, -1.0)):
        with pytest.raises(GnomonError, match="network"):
            shadows(gbps, rtt_ms)
    with pytest.raises(GnomonError, match="network"):
        simulate(SimulateOptions(ArrivalOptions(rate_rps=1.0, duration_s=1.0), service_s=0.1, network_gbps=1.0))


def test_a_node_holds_cores_for_shadows_and_has_a_pool(tmp_path: Path) -> None:
    profile = tmp_path / "model.json"
    blocks = (BlockPlan(0.5, 20_000_000), BlockPlan(0.5, 80_000_000))
    profile.write_text(json.dumps(made_up_profile(blocks, (0.5, 1.0, 1.5, 2.0), gmacs=4.0, load_s=0.1).to_json()))

    def simulated(**nodes: Any) -> Any:
        options = SimulateOptions(
            ArrivalOptions(rate_rps=3.0, duration_s=30.0), labels={"com.openfaas.scale.max": "3"}, profile=profile,
            annotations={"gnomon/autoscaler": "asyfunc", "gnomon/slo-ms": "4000", "gnomon/max-cores": "1"},
            warm=1, json=True, **nodes,
        )  # fmt: skip
        return figures(options)[0]

    assert simulated(node_cores=1)["shadows"] == 0
    assert simulated(node_cores=2, reserved_cores=1.0)["shadows"] > 0
    assert simulated(node_cores=2, pool=0)["shadows"] > 0, "made by forks"


BEGUN = 1_700_000_000.0
LEAD_S = 2.5
SETTINGS = Settings(autoscaler="od", scheduler="immediate", scale=ScaleSettings(min=1, max=8))
PROFILE = constant_profile("f", 0.1, load_s=0.2)
# 5 requests/s for 10 s need one instance, 35 for 10 s four, then 5 for 10 s again one.
ARRIVALS = [*constant(5, 10), *(10 + at_s for at_s in constant(35, 10)), *(20 + at_s for at_s in constant(5, 10))]


def simulated(arrivals: Sequence[float]) -> FunctionResult:
    return simulated_run([FunctionPlan("f", SETTINGS, PROFILE, arrivals, "learned")], [NodePlan("node-1", 8)])["f"]


def written(folder: Path, result: FunctionResult, *, slower: float = 1.0) -> tuple[Path, list[dict[str, Any]]]:
    """A simulated run as the generator and the gateway would have recorded it, with latencies `slower` times as long."""
    samples = Samples.unsent(ARRIVALS)
    for row, request in enumerate(result.requests.rows()):
        samples.sent_s[row] = request["arrived_s"] - LEAD_S
        samples.answered_s[row] = samples.sent_s[row] + slower * (request["finished_s"] - request["arrived_s"])
        samples.outcome[row], samples.status[row] = Outcome.ANSWERED, request["status"]
    started_at = datetime.fromtimestamp(BEGUN + LEAD_S, UTC).isoformat()
    record = folder / "record.jsonl"
    Report("POST http://127.0.0.1/", 30.0, 30.0, started_at, 0.0, samples).write_record(record)
    decisions = [
        {
            "at": datetime.fromtimestamp(BEGUN + decision.at, UTC).isoformat().replace("+00:00", "Z"),
            "policy": decision.policy,
            "desired": decision.desired,
            "reason": decision.reason,
            "actions": [{"action": type(action).__name__, **asdict(action)} for action in decision.actions],
        }
        for decision in reversed(result.decisions)
    ]
    return record, decisions


@pytest.fixture
def live() -> FunctionResult:
    return simulated([at_s + LEAD_S for at_s in ARRIVALS])


def test_a_run_agrees_with_itself(tmp_path: Path, live: FunctionResult) -> None:
    recording = read_recording(*written(tmp_path, live))
    plan = recording.plan("f", SETTINGS, PROFILE)
    parity = compare(recording, simulated(plan.arrivals_s))
    assert recording.lead_s == pytest.approx(LEAD_S)
    assert parity.same_decisions
    assert parity.agreement == 1.0
    assert {step.desired for step in parity.live} >= {1, 4}
    assert parity.largest_shift_s == pytest.approx(0.0, abs=1e-5)
    assert [row.ratio for row in parity.percentiles] == pytest.approx([1.0] * 4, abs=1e-3)
    assert parity.answered == (len(ARRIVALS), len(ARRIVALS))
    assert "the same" in parity.table()


def test_slower_answers_show_as_ratios(tmp_path: Path, live: FunctionResult) -> None:
    recording = read_recording(*written(tmp_path, live, slower=1.5))
    parity = compare(recording, live)
    assert [row.ratio for row in parity.percentiles] == pytest.approx([1.5] * 4, rel=1e-3)


def test_a_decision_that_one_side_lacks_lowers_the_agreement(tmp_path: Path, live: FunctionResult) -> None:
    record, decisions = written(tmp_path, live)
    acted = [decision for decision in decisions if decision["actions"]]
    decisions.remove(acted[1])
    parity = compare(read_recording(record, decisions), live)
    assert not parity.same_decisions
    assert parity.agreement == pytest.approx((len(acted) - 1) / len(acted))
    assert json.loads(json.dumps(parity.summary()))["same_decisions"] is False


def test_invalid_recording_is_refused(tmp_path: Path, live: FunctionResult) -> None:
    record, decisions = written(tmp_path, live)
    with pytest.raises(GnomonError, match="deployment"):
        read_recording(record, [])
    record.write_text("{}\n")
    with pytest.raises(GnomonError, match="gnomon-replay"):
        read_recording(record, decisions)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_line_says_what_is_done_and_what_is_left() -> None:
    text = progress_text("simulate lv", "", 9 * 3600.0, 24 * 3600.0, 12.0)
    assert text == "simulate lv [#########...............]  38%   9.0 h of 24.0 h simulated   12 s, about 20 s left"
    assert "3 of 8 cells" in progress_text("evaluate", "cells", 3, 8, 60.0)


@pytest.mark.parametrize(("out", "written"), [(io.StringIO(), 5), (Terminal(), 60)])
def test_a_terminal_has_a_bar_and_a_log_a_line_every_ten_seconds(out: io.StringIO, written: int) -> None:
    clock = count()
    progress = Progress("run", out=out, clock=lambda: float(next(clock)))
    for second in range(1, 60):
        progress.at(second, 60)
    lines = out.getvalue().replace("\r", "\n").split("\n")
    assert len([line for line in lines if "run [" in line]) in (written, written - 1, written - 2)


def test_watching_a_run_changes_nothing() -> None:
    plan = FunctionPlan("f", settings(), constant_profile("v", 0.05), constant(20.0, 30.0), warm=1)
    seen: list[tuple[float, float]] = []
    watched = simulate_plans([plan], [NodePlan("n", 8)], watch=lambda done, total: seen.append((done, total)))["f"]
    alone = simulate_plans([plan], [NodePlan("n", 8)])["f"]
    assert list(watched.requests.finished_s) == list(alone.requests.finished_s)
    assert watched.summary() == alone.summary()
    assert seen[-1][0] == seen[-1][1] == plan.arrivals_s[-1]
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_opt_never_wants_more_than_its_bound() -> None:
    """Twelve at once in half an objective of 1 s, 0.1 s each alone: 24 a second, 10 an instance."""
    assert most_instances([float(second) for second in range(9)] + [9.0] * 12, (0.1, 0.15), 1.0) == 3
    assert most_instances([], (0.1,), 1.0) == 1
