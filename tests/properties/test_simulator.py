"""The simulator for any workload."""

import json
import math
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnomon_core.errors import GnomonError
from gnomon_core.settings import ScaleSettings, Settings
from gnomon_platforms.local.nodes import LocalNode
from gnomon_simulator.arrivals import poisson
from gnomon_simulator.events import stream
from gnomon_simulator.profiles import Noise, constant
from gnomon_simulator.simulated_platform import NodePlan, SimulatedNode
from gnomon_simulator.simulation import FunctionPlan, simulate

NODES = [NodePlan("node-1", 4), NodePlan("node-2", 2)]
AUTOSCALERS = ("fixed", "od", "lv", "k-lv", "kpa", "openfaas", "hpa", "mark", "target-tracking")
SCHEDULERS = ("adaptive", "adaptive-paper", "fixed", "immediate")


@st.composite
def plans(draw: st.DrawFn) -> FunctionPlan:
    """Any function under any load, noisy and crashing."""
    lowest = draw(st.integers(0, 2))
    rate_rps = draw(st.floats(0.5, 60.0))
    return FunctionPlan(
        name="f",
        settings=Settings(
            autoscaler=draw(st.sampled_from(AUTOSCALERS)),
            scheduler=draw(st.sampled_from(SCHEDULERS)),
            slo_s=draw(st.floats(0.05, 2.0)),
            deadline_s=draw(st.floats(0.05, 4.0)),
            max_batch=draw(st.integers(1, 8)),
            max_wait_s=draw(st.floats(0.0, 0.2)),
            queue_max_requests=draw(st.integers(1, 50)),
            scale=ScaleSettings(min=lowest, max=draw(st.integers(max(1, lowest), 6)), zero_duration_s=1.0),
        ),
        profile=constant(
            "v",
            draw(st.floats(0.005, 0.3)),
            load_s=draw(st.floats(0.0, 1.0)),
            noise=Noise("lognormal", draw(st.floats(0.0, 1.0))),
        ),
        arrivals_s=poisson(rate_rps, draw(st.floats(0.0, 20.0)), stream(draw(st.integers(0, 99)), "arrivals")),
        knowledge=draw(st.sampled_from(("given", "profiled", "learned"))),
        warm=draw(st.integers(0, 2)),
        crashes_s=draw(st.lists(st.floats(0.0, 20.0), max_size=4)),
    )


@given(plans(), st.integers(0, 99))
@settings(max_examples=120, deadline=None)
def test_every_arrival_has_exactly_one_outcome_and_none_is_out_of_bounds(plan: FunctionPlan, seed: int) -> None:
    result = simulate([plan], NODES, seed)["f"]
    rows = list(result.requests.rows())
    assert len(rows) == len(plan.arrivals_s)
    for row in rows:
        assert row["status"] in (200, 429, 502, 503, 504)
        assert row["arrived_s"] <= row["finished_s"] <= row["arrived_s"] + plan.settings.deadline_s + 1e-9
        assert row["batch"] <= plan.settings.max_batch
        if row["status"] == 200:
            assert row["arrived_s"] <= row["dispatched_s"] < row["finished_s"]
            assert row["instance"] in result.requests.instances
    assert result.most_instances <= max(plan.settings.scale.max, plan.warm)
    assert result.busy_core_s <= result.core_s + 1e-9


@given(plans(), st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_the_same_seed_gives_the_same_run_to_the_last_bit(plan: FunctionPlan, seed: int) -> None:
    first, second = (simulate([plan], NODES, seed)["f"] for _ in range(2))
    assert json.dumps([first.summary(), *first.requests.rows()]) == json.dumps([second.summary(), *second.requests.rows()])


@given(plans())
@settings(max_examples=25, deadline=None)
def test_on_one_node_no_instance_executes_two_batches_at_once(plan: FunctionPlan) -> None:
    result = simulate([plan], [NodePlan("node-1", 6)])["f"]
    batches: dict[tuple[str, float], float] = {}
    for row in result.requests.rows():
        if row["status"] == 200:
            batches[row["instance"], row["dispatched_s"]] = row["finished_s"]
    ended: dict[str, float] = {}
    for (instance, begun_s), end_s in sorted(batches.items()):
        assert begun_s >= ended.get(instance, 0.0)
        ended[instance] = end_s


def erlang_c(servers: int, offered: float) -> float:
    """The probability of waiting in M/M/k, from the formula in any textbook."""
    terms = [offered**n / math.factorial(n) for n in range(servers)]
    last = offered**servers / math.factorial(servers) * servers / (servers - offered)
    return last / (sum(terms) + last)


SERVICE_S = 0.01


def waits_s(servers: int, load: float, seed: int, requests: int, noise: Noise) -> list[float]:
    """How long requests wait for one of `servers`, in service times."""
    forever = Settings(
        autoscaler="fixed",
        scheduler="immediate",
        deadline_s=86_400.0,
        slo_s=86_400.0,
        queue_max_requests=10**6,
        scale=ScaleSettings(min=servers, max=servers),
    )
    rate_rps = load * servers / SERVICE_S
    arrivals_s = poisson(rate_rps, requests / rate_rps, stream(seed, "arrivals"))
    plan = FunctionPlan("f", forever, constant("v", SERVICE_S, noise=noise), arrivals_s, "given", warm=servers)
    rows = simulate([plan], [NodePlan("node-1", servers)], seed)["f"].requests
    return [(sent_s - arrived_s) / SERVICE_S for arrived_s, sent_s in zip(rows.arrived_s, rows.dispatched_s, strict=True)]


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("servers", "load"), [(1, 0.5), pytest.param(2, 0.7, marks=SLOW), (4, 0.8), pytest.param(8, 0.6, marks=SLOW)]
)
def test_waiting_times_are_those_of_m_m_k(servers: int, load: float) -> None:
    waits = waits_s(servers, load, 1, 100_000, Noise("exponential"))
    waiting = erlang_c(servers, load * servers)
    spare = servers * (1 - load)
    # Waits of neighbours are alike: at a load of 0.8 the mean of 100,000 deviates by 3.5 % (one sigma).
    assert sum(wait > 0 for wait in waits) / len(waits) == pytest.approx(waiting, rel=0.05)
    assert statistics.fmean(waits) == pytest.approx(waiting / spare, rel=0.10)
    # Who waits, waits exponentially: P(W > t) = C·e^(−t·spare).
    assert sum(wait > 1 / spare for wait in waits) / len(waits) == pytest.approx(waiting / math.e, rel=0.12)


def test_waiting_times_are_those_of_m_d_1() -> None:
    # Pollaczek and Khinchine: W = ρ / (2·(1 − ρ)) service times.
    waits = waits_s(1, 0.7, 1, 100_000, Noise())
    assert statistics.fmean(waits) == pytest.approx(0.7 / 0.6, rel=0.06)


CORES, MEMORY_BYTES = 6, 100
ASKED = st.tuples(
    st.integers(0, 5), st.sampled_from(["body", "shadow", "end", "resize", "promote"]), st.integers(1, 4), st.integers(0, 60)
)


@given(st.integers(0, CORES), st.lists(ASKED, max_size=30))
def test_both_give_the_same_away(reserved_cores: int, asked: list[tuple[int, str, int, int]]) -> None:
    local = LocalNode(tuple(range(CORES)), CORES, MEMORY_BYTES, "n1", reserved_cores=reserved_cores, lends=True)
    simulated = SimulatedNode(NodePlan("n1", CORES, MEMORY_BYTES, reserved_cores=reserved_cores, pool=0))
    there: dict[str, tuple[int, int, bool]] = {}

    def given_away(name: str, cores: int, memory_bytes: int, *, shadow: bool) -> None:
        """Allocate it, or nothing of it, on both."""
        before = there.get(name, (0, 0, shadow))
        more = cores - before[0], memory_bytes - before[1]
        fits = simulated.has_room(*more, reserve=True)
        try:
            local.allocate(name, cores, memory_bytes, cores, from_reserve=shadow)
        except GnomonError:
            assert not fits
            return
        assert fits
        simulated.hold(name, cores, memory_bytes, 0.0, shadow=shadow)
        there[name] = cores, memory_bytes, shadow

    for number, what, cores, memory_bytes in asked:
        name = f"i-{number}"
        if what in ("body", "shadow") and name not in there:
            given_away(name, cores, memory_bytes, shadow=what == "shadow")
        elif what == "end" and name in there:
            del there[name]
            local.release(name)
            simulated.release(name, 0.0)
        elif what == "resize" and name in there and not there[name][2]:
            given_away(name, cores, there[name][1], shadow=False)
        elif what == "promote" and name in there and there[name][2]:
            given_away(name, there[name][0], max(there[name][1], memory_bytes), shadow=False)
        assert simulated.value(0.0) == local.value()
