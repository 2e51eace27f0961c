"""How long batches take: what gateways tell of it on their page, and what is read there."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.functions import FunctionKey
from gnomon_core.settings import Settings
from gnomon_gateway.dispatch.latency import LearnedLatency
from gnomon_gateway.functions.function_runtime import FunctionRuntime
from gnomon_gateway.scheduling.basic import Immediate
from gnomon_platforms.knative.autoscaler.metrics import (
    FIGURE,
    MOST_BATCH,
    SECONDS,
    SPREAD,
    Learned,
    learned,
    learned_to_text,
    waiting,
)
from gnomon_server.knative_gateway import RevisionMetrics
from tests.integration.knative_batching.test_revision_requests import Telling

F, G, OTHER = FunctionKey("f-00001", "users"), FunctionKey("g-00001", "users"), FunctionKey("f-00001", "others")
EVERYTHING = ("", FIGURE, SECONDS)


@pytest.fixture
async def runtimes() -> AsyncIterator[dict[FunctionKey, FunctionRuntime]]:
    """Revisions that are served, and of which nothing is known."""
    made = {key: FunctionRuntime(key, Settings(max_batch=4, cores=2), Immediate(), LearnedLatency()) for key in (F, G, OTHER)}
    yield made
    for runtime in made.values():
        runtime.close()


def measure(runtime: FunctionRuntime, seconds: Iterable[float], cores: int = 2) -> None:
    """Batches of 1, 2, … have taken so long."""
    for size, took_s in enumerate(seconds, start=1):
        for _ in range(20):
            runtime.latency.observe(runtime.variant, cores, size, took_s)


def figures(runtimes: dict[FunctionKey, FunctionRuntime], *takes: FunctionKey) -> RevisionMetrics:
    return RevisionMetrics(runtimes.values, lambda key: key in takes)


async def test_a_page_tells_what_the_batches_of_each_revision_take(runtimes: dict[FunctionKey, FunctionRuntime]) -> None:
    measure(runtimes[F], [0.1, 0.12, 0.15, 0.2])
    measure(runtimes[OTHER], [0.3, 0.3, 0.3, 0.3])
    found = learned(figures(runtimes, F, G, OTHER).whole())
    assert found.keys() == {F, OTHER}, "nobody knows what those of the third take"
    assert found[F].latency_s == pytest.approx([0.1, 0.12, 0.15, 0.2], rel=0.01)
    assert found[OTHER].latency_s == pytest.approx([0.3] * 4, rel=0.01)


async def test_a_revision_whose_pods_take_no_batches_is_not_told_of(runtimes: dict[FunctionKey, FunctionRuntime]) -> None:
    measure(runtimes[F], [0.1])
    assert learned(figures(runtimes, G, OTHER).whole()) == {}


async def test_how_far_batches_are_from_that_is_told_of_the_pods_that_there_are(
    runtimes: dict[FunctionKey, FunctionRuntime],
) -> None:
    runtime = runtimes[F]
    for number in range(200):
        runtime.latency.observe(runtime.variant, 2, 1, 0.1 if number % 2 else 0.2)
    assert learned(figures(runtimes, F).whole())[F].spread == 0.0
    runtime.instance_ready(Instance("pod-1", str(F), 1, "", 2, 0, InstanceState.READY, 0.0), Telling())
    assert learned(figures(runtimes, F).whole())[F].spread == pytest.approx(runtime.latency_spread([2]), rel=0.01)
    assert learned(figures(runtimes, F).whole())[F].spread > 0.1


async def test_each_part_can_be_asked_for_alone_and_whoever_asks_for_more_gets_everything(
    runtimes: dict[FunctionKey, FunctionRuntime],
) -> None:
    measure(runtimes[F], [0.1])
    page = figures(runtimes, F)
    parts = {name: page.text([name]) or "" for name in (FIGURE, SECONDS)}
    assert (FIGURE in parts[FIGURE], SECONDS in parts[FIGURE]) == (True, False)
    assert (FIGURE in parts[SECONDS], SECONDS in parts[SECONDS], SPREAD in parts[SECONDS]) == (False, True, True)
    assert page.text([SECONDS, FIGURE, SECONDS]) == page.whole() == parts[FIGURE] + parts[SECONDS]
    assert page.text([]) is None
    assert page.text([FIGURE, "process_cpu_seconds_total"]) is None


CURVES = st.lists(st.floats(min_value=1e-6, max_value=1e4), min_size=1, max_size=20)
KEYS = st.sampled_from([F, G, OTHER])


@given(st.dictionaries(KEYS, st.tuples(CURVES, st.floats(min_value=0.0, max_value=1e3))))
def test_what_is_told_is_read(said: dict[FunctionKey, tuple[list[float], float]]) -> None:
    page = learned_to_text({key: Learned(tuple(curve), spread) for key, (curve, spread) in said.items()})
    found = learned(f"# TYPE other gauge\nother 1\n{page}{FIGURE}{{}} 1\n")
    assert found.keys() == said.keys()
    for key, (curve, spread) in said.items():
        assert found[key].latency_s == pytest.approx(curve, rel=1e-5)
        assert found[key].spread == pytest.approx(spread, rel=1e-3)
    assert waiting(page) == {}


def line(figure: str, value: str, size: str | None = "1", name: str = "f-00001", namespace: str = "users") -> str:
    more = "" if size is None else f',batch_size="{size}"'
    return f'{figure}{{k8s_namespace_name="{namespace}",kn_revision_name="{name}"{more}}} {value}\n'


FIRST = line(SECONDS, "0.1")


@pytest.mark.parametrize("value", ["0", "-1", "1e999", "NaN", "+Inf", "1-1", "e", "", "1" * 100])
def test_what_is_no_time_is_none(value: str) -> None:
    assert learned(line(SECONDS, value)) == {}
    assert learned(FIRST + line(SECONDS, value, "2") + line(SECONDS, "0.3", "3")) == {F: Learned((0.1,))}


@pytest.mark.parametrize("size", ["0", "-1", "2.5", "", "x", str(MOST_BATCH + 1), "9" * 500, "9" * 5000, None])
def test_what_is_no_size_of_a_batch_is_left_out(size: str | None) -> None:
    assert learned(FIRST + line(SECONDS, "0.3", size)) == {F: Learned((0.1,))}


@pytest.mark.parametrize("value", ["-0.5", "1e999", "NaN", "-1e999"])
def test_what_is_no_spread_is_none(value: str) -> None:
    assert learned(FIRST + line(SPREAD, value, None)) == {F: Learned((0.1,))}


def test_a_spread_without_a_curve_and_lines_that_name_no_revision_say_nothing() -> None:
    nameless = line(SECONDS, "0.1", name="") + line(SECONDS, "0.1", namespace="") + f"{SECONDS} 0.1\n{SECONDS}{{}} 0.1\n"
    assert learned(nameless + line(SPREAD, "0.1", None)) == {}


@given(st.text(alphabet=st.sampled_from(f'{{}}"\\,=_ \n0189eE+-.{SECONDS[:6]}'), max_size=300))
def test_whatever_a_page_says_is_read(rubbish: str) -> None:
    assert learned(f"{SECONDS}{rubbish}\n{FIRST}")[F].latency_s[0] > 0.0


@pytest.mark.parametrize(
    "page",
    [f"{SECONDS}{{\n" * 100_000, f"{SECONDS}{{" + "a" * 2_000_000, f'{SECONDS}{{a="' + "\\" * 2_000_000, FIRST * 40_000],
    ids=["braces", "name", "escapes", "again"],
)
def test_a_page_that_is_made_to_cost_time_costs_little(page: str) -> None:
    begun_s = time.process_time()
    found = learned(page)
    assert time.process_time() - begun_s < 5.0
    assert found in ({}, {F: Learned((0.1,))})
