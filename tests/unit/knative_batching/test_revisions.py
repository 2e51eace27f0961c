"""Revisions as functions of the gateway, and the plan by which their batches are made."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnomon_core.errors import bad_request
from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.functions import FunctionKey, read_deployment
from gnomon_core.scaling import SetBufferPlan
from gnomon_core.settings import Settings
from gnomon_gateway.dispatch.latency import LearnedLatency
from gnomon_gateway.functions.function_runtime import FunctionRuntime
from gnomon_gateway.scheduling.policies import Immediate
from gnomon_platforms.knative.autoscaler.metrics import (
    FIGURE,
    MOST_BATCH,
    SECONDS,
    SPREAD,
    ObservedLatency,
    latency_from_text,
    latency_to_text,
    waiting,
)
from gnomon_platforms.knative.autoscaler.objects import buffered
from gnomon_platforms.knative.batching import channel as slots
from gnomon_platforms.knative.batching.channel import PendingResizes, PodName
from gnomon_platforms.knative.batching.revisions import RevisionFacts, RevisionReader, in_force, misread
from gnomon_platforms.knative.buffer_status import ANNOTATION, MOST_BYTES, BufferStatus, buffer_of, with_buffer_plan
from gnomon_server.knative_gateway import RevisionMetrics
from tests.integration.knative_batching.test_revisions import Telling
from tests.unit.knative_autoscaler.played import pod

OURS = {"autoscaling.knative.dev/class": "gnomon"}
BATCHES = {**OURS, "gnomon/max-batch": "8"}
VARIABLE = {
    "name": "GNOMON_BATCH_TOKEN",
    "valueFrom": {"secretKeyRef": {"name": "gnomon-batch-token", "key": "gnomon-batch-token"}},
}
PROJECTED = {"projected": {"sources": [{"secret": {"name": "other"}}, {"secret": {"name": "gnomon-batch-token"}}]}}


def revision(annotations: dict[str, str], *, port: str = "", **spec: Any) -> dict[str, Any]:
    container: dict[str, Any] = {"image": "example/body:1", "ports": [{"name": port}]} if port else {"image": "example/body:1"}
    if "env" in spec:
        container["env"] = spec.pop("env")
    metadata = {"name": "f-00001", "namespace": "users", "annotations": annotations, "creationTimestamp": "2026-01-02T03:04:05Z"}
    return {"metadata": metadata, "spec": {"containers": [container], **spec}}


def anything(_: Settings) -> None:
    """Every setting is good."""


@pytest.mark.parametrize(
    ("annotations", "port", "asks"),
    [
        (BATCHES, "", True),
        ({**OURS, "gnomon/scheduler": "adaptive"}, "http1", True),
        (OURS, "", False),
        ({**OURS, "gnomon/slo-ms": "100"}, "", False),
        ({"gnomon/max-batch": "8"}, "", False),
        ({**BATCHES, "autoscaling.knative.dev/class": "kpa.autoscaling.knative.dev"}, "", False),
        (BATCHES, "h2c", False),
    ],
)
def test_a_revision_is_buffered_that_asks_for_it_and_that_our_class_can_wake(
    annotations: dict[str, str], port: str, *, asks: bool
) -> None:
    document = revision(annotations, port=port)
    assert buffered(document) is asks
    assert RevisionReader(anything)(document).buffered is asks


@pytest.mark.parametrize(
    "given",
    [{"volumes": [{"secret": {"secretName": "gnomon-batch-token"}}]}, {"volumes": [PROJECTED]}, {"env": [VARIABLE]}],
    ids=["volume", "projected", "variable"],
)
def test_pods_with_the_secret_get_batches_one_at_a_time(given: dict[str, Any]) -> None:
    facts = RevisionReader(anything)(revision(BATCHES, **given))
    assert (facts.takes_batches, facts.places, facts.spec.settings.max_batch) == (True, 1, 8)


def variable(key: str, name: str = "GNOMON_BATCH_TOKEN") -> dict[str, Any]:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": "gnomon-batch-token", "key": key}}}


ITEMS = [{"key": "other", "path": "another"}, {"key": "f", "path": "secrets/gnomon-batch-token"}]


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"env": [VARIABLE]}, "gnomon-batch-token"),
        ({"env": [{"name": "X", "value": "1"}, variable("other", "ANOTHER"), variable("f")]}, "f"),
        ({"env": [variable("f", "ANOTHER")]}, "f"),
        ({"env": [variable("f")], "volumes": [{"secret": {"secretName": "gnomon-batch-token"}}]}, "f"),
        (
            {
                "env": [variable("other", "ANOTHER")],
                "volumes": [{"secret": {"secretName": "gnomon-batch-token", "items": ITEMS}}],
            },
            "f",
        ),
        ({"volumes": [{"secret": {"secretName": "gnomon-batch-token"}}]}, "gnomon-batch-token"),
        ({"volumes": [{"emptyDir": {}}, {"secret": {"secretName": "gnomon-batch-token", "items": ITEMS}}]}, "f"),
        ({"volumes": [{"secret": {"secretName": "gnomon-batch-token", "items": [{"key": "f", "path": "mine"}]}}]}, "f"),
        ({"volumes": [{"projected": {"sources": [{"secret": {"name": "gnomon-batch-token", "items": ITEMS}}]}}]}, "f"),
        ({"env": [{"name": "GNOMON_BATCH_TOKEN", "value": "its own"}]}, ""),
    ],
)
def test_token_key_is_read_from_a_revisions_variables_and_volumes(given: dict[str, Any], key: str) -> None:
    """The Body in the pods looks for the key so: first the variable, then the file."""
    assert RevisionReader(anything)(revision(BATCHES, **given)).token_key == key


@pytest.mark.parametrize(
    ("annotations", "concurrency", "places"),
    [
        (BATCHES, 0, 4),
        (BATCHES, 2, 2),
        ({**BATCHES, "gnomon/max-inflight": "9"}, 0, 9),
        ({**BATCHES, "gnomon/max-inflight": "9"}, 3, 3),
    ],
)
def test_pods_without_the_secret_get_requests_as_many_at_once_as_they_take(
    annotations: dict[str, str], concurrency: int, places: int
) -> None:
    facts = RevisionReader(anything)(revision(annotations, containerConcurrency=concurrency))
    assert (facts.takes_batches, facts.places, facts.spec.settings.max_batch) == (False, places, 1)


def test_a_request_may_wait_as_long_as_knative_lets_it_unless_the_revision_says_otherwise() -> None:
    read = RevisionReader(anything)
    assert read(revision(BATCHES)).spec.settings.deadline_s == 300.0
    assert read(revision(BATCHES, timeoutSeconds=20)).spec.settings.deadline_s == 20.0
    settings = read(revision({**BATCHES, "gnomon/deadline-ms": "500", "gnomon/slo-ms": "100"})).spec.settings
    assert (settings.deadline_s, settings.slo_s) == (0.5, 0.1)


def test_no_batch_waits_longer_than_knative_lets_its_requests() -> None:
    read = RevisionReader(anything)
    assert read(revision(BATCHES, timeoutSeconds=10)).spec.settings.slo_s == 10.0
    assert read(revision({**BATCHES, "gnomon/slo-ms": "100"}, timeoutSeconds=10)).spec.settings.slo_s == 0.1
    assert read(revision({**BATCHES, "gnomon/slo-ms": "20000"}, timeoutSeconds=10)).spec.settings.slo_s == 10.0


def refusing(problem: str) -> Callable[[Settings], None]:
    def check(settings: Settings) -> None:
        if settings.scheduler is not None:
            raise bad_request("unknown_policy", problem)

    return check


@pytest.mark.parametrize(
    "wrong",
    [
        {"gnomon/max-batch": "many"},
        {"gnomon/unheard-of": "1"},
        {"gnomon/scheduler": "unheard-of"},
        {"gnomon/model": "app:photos"},
    ],
)
def test_settings_that_cannot_be_read_are_left_out_and_told_once(wrong: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    read = RevisionReader(refusing("there is no such policy"))
    document = revision({**BATCHES, **wrong}, env=[VARIABLE])
    facts = [read(document) for _ in range(2)][-1]
    assert (facts.buffered, facts.spec.settings.max_batch, facts.spec.settings.autoscaler) == (True, 1, "kpa")
    assert len(caplog.records) == 1
    assert "f-00001.users" in caplog.text
    read(revision(BATCHES))
    read(document)
    assert len(caplog.records) == 2
    read.forget(FunctionKey("f-00001", "users"))
    read(document)
    assert len(caplog.records) == 3, "a new Revision of a deleted one's name"


def test_revision_of_an_application_is_told_what_to_deploy_instead(caplog: pytest.LogCaptureFixture) -> None:
    document = revision({**BATCHES, "gnomon/model": "app:photos"}, env=[VARIABLE])
    RevisionReader(anything)(document)
    for text in (caplog.text, misread(document)):
        assert "names the application 'photos'" in text
        assert "from the template gnomon-application" in text


@pytest.mark.parametrize(
    ("annotations", "resources", "cores"),
    [
        ({}, {}, 1),
        ({}, {"requests": {"cpu": "2"}}, 2),
        ({}, {"requests": {"cpu": "1"}, "limits": {"cpu": "3500m"}}, 3),
        ({}, {"limits": {"cpu": "200m"}}, 1),
        ({"gnomon/cores": "4"}, {"requests": {"cpu": "2"}}, 4),
    ],
)
def test_pod_cores_come_from_the_annotation_else_the_template(
    annotations: dict[str, str], resources: dict[str, Any], cores: int
) -> None:
    """Batch latencies are reported for pods of that size."""
    document = revision({**BATCHES, **annotations})
    document["spec"]["containers"][0]["resources"] = resources
    assert RevisionReader(anything)(document).spec.settings.cores == cores


POD = pod(cores=2.0)


async def test_pending_resize_times_out_and_is_forgotten_with_its_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "MAX_RESIZE_WAIT_S", 0.0)
    expired: list[PodName] = []
    pending = PendingResizes(expired.append)
    assert pending.is_pending(POD)
    await asyncio.sleep(0.02)
    assert expired == [("users", "a")]
    assert not pending.is_pending(POD), "the timeout has passed"
    pending.forget(POD)
    assert pending.is_pending(POD), "a forgotten pod starts anew"


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
    found = latency_from_text(figures(runtimes, F, G, OTHER).whole())
    assert found.keys() == {F, OTHER}, "nobody knows what those of the third take"
    assert found[F].latency_s == pytest.approx([0.1, 0.12, 0.15, 0.2], rel=0.01)
    assert found[OTHER].latency_s == pytest.approx([0.3] * 4, rel=0.01)


async def test_a_revision_whose_pods_take_no_batches_is_not_told_of(runtimes: dict[FunctionKey, FunctionRuntime]) -> None:
    measure(runtimes[F], [0.1])
    assert latency_from_text(figures(runtimes, G, OTHER).whole()) == {}


async def test_how_far_batches_are_from_that_is_told_of_the_pods_that_there_are(
    runtimes: dict[FunctionKey, FunctionRuntime],
) -> None:
    runtime = runtimes[F]
    for number in range(200):
        runtime.latency.observe(runtime.variant, 2, 1, 0.1 if number % 2 else 0.2)
    assert latency_from_text(figures(runtimes, F).whole())[F].spread == 0.0
    runtime.instance_ready(Instance("pod-1", str(F), 1, "", 2, 0, InstanceState.READY, 0.0), Telling())
    assert latency_from_text(figures(runtimes, F).whole())[F].spread == pytest.approx(runtime.latency_spread([2]), rel=0.01)
    assert latency_from_text(figures(runtimes, F).whole())[F].spread > 0.1


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
def test_written_latencies_are_read_back(said: dict[FunctionKey, tuple[list[float], float]]) -> None:
    page = latency_to_text({key: ObservedLatency(tuple(curve), spread) for key, (curve, spread) in said.items()})
    found = latency_from_text(f"# TYPE other gauge\nother 1\n{page}{FIGURE}{{}} 1\n")
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
def test_invalid_latency_is_none(value: str) -> None:
    assert latency_from_text(line(SECONDS, value)) == {}
    assert latency_from_text(FIRST + line(SECONDS, value, "2") + line(SECONDS, "0.3", "3")) == {F: ObservedLatency((0.1,))}


@pytest.mark.parametrize("size", ["0", "-1", "2.5", "", "x", str(MOST_BATCH + 1), "9" * 500, "9" * 5000, None])
def test_invalid_batch_size_is_left_out(size: str | None) -> None:
    assert latency_from_text(FIRST + line(SECONDS, "0.3", size)) == {F: ObservedLatency((0.1,))}


@pytest.mark.parametrize("value", ["-0.5", "1e999", "NaN", "-1e999"])
def test_invalid_spread_is_none(value: str) -> None:
    assert latency_from_text(FIRST + line(SPREAD, value, None)) == {F: ObservedLatency((0.1,))}


def test_a_spread_without_a_curve_and_lines_that_name_no_revision_say_nothing() -> None:
    nameless = line(SECONDS, "0.1", name="") + line(SECONDS, "0.1", namespace="") + f"{SECONDS} 0.1\n{SECONDS}{{}} 0.1\n"
    assert latency_from_text(nameless + line(SPREAD, "0.1", None)) == {}


@given(st.text(alphabet=st.sampled_from(f'{{}}"\\,=_ \n0189eE+-.{SECONDS[:6]}'), max_size=300))
def test_any_page_is_read(rubbish: str) -> None:
    assert latency_from_text(f"{SECONDS}{rubbish}\n{FIRST}")[F].latency_s[0] > 0.0


@pytest.mark.parametrize(
    "page",
    [f"{SECONDS}{{\n" * 100_000, f"{SECONDS}{{" + "a" * 2_000_000, f'{SECONDS}{{a="' + "\\" * 2_000_000, FIRST * 40_000],
    ids=["braces", "name", "escapes", "again"],
)
def test_a_page_that_is_made_to_cost_time_costs_little(page: str) -> None:
    begun_s = time.process_time()
    found = latency_from_text(page)
    assert time.process_time() - begun_s < 5.0
    assert found in ({}, {F: ObservedLatency((0.1,))})


PLAN = SetBufferPlan(4, 0.05)
SAID = BufferStatus("batch", PLAN)


def facts(**settings: Any) -> RevisionFacts:
    spec = read_deployment({"service": "f-00001", "namespace": "users", "image": "x"})
    own = Settings(**{"autoscaler": "batch", "max_batch": 8, "deadline_s": 10.0, **settings})
    return RevisionFacts(replace(spec, settings=own), 0.0, buffered=True, token_key="key", places=1)


def test_batches_are_made_by_the_plan_of_the_policy_that_the_revision_names() -> None:
    assert in_force(SAID, facts()) == PLAN
    assert in_force(SAID, facts(autoscaler="batch+")) is None
    assert in_force(SAID, facts(autoscaler="kpa")) is None
    assert in_force(replace(SAID, policy="asyfunc"), facts(autoscaler="asyfunc")) == PLAN


def test_there_is_no_plan_without_a_revision_or_for_one_that_is_not_buffered() -> None:
    assert in_force(SAID, None) is None
    assert in_force(None, facts()) is None
    assert in_force(SAID, replace(facts(), buffered=False)) is None


@pytest.mark.parametrize(
    ("planned", "cut"),
    [((8, 10.0), (8, 10.0)), ((9, 0.05), (8, 0.05)), ((10**300, 1e300), (8, 10.0)), ((1, 0.0), (1, 0.0))],
)
def test_a_plan_beyond_what_the_revision_says_is_cut(planned: tuple[int, float], cut: tuple[int, float]) -> None:
    assert in_force(BufferStatus("batch", SetBufferPlan(*planned)), facts()) == SetBufferPlan(*cut)


def test_pods_that_take_no_batches_get_requests_one_by_one_whatever_is_planned() -> None:
    read, own = RevisionReader(anything), {**BATCHES, "gnomon/autoscaler": "batch"}
    assert in_force(SAID, read(revision(own, timeoutSeconds=10))) == SetBufferPlan(1, 0.05)
    assert in_force(SAID, read(revision(own, timeoutSeconds=10, env=[VARIABLE]))) == PLAN


def test_gateways_read_the_plan_that_the_class_writes() -> None:
    assert buffer_of(with_buffer_plan({}, SAID)) == SAID
    third = BufferStatus("batch+", SetBufferPlan(1, 1 / 3))
    assert buffer_of(with_buffer_plan({"annotations": {"theirs": "x"}}, third)) == third
    assert buffer_of(with_buffer_plan(with_buffer_plan({}, SAID), None)) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        '"batch"',
        "{",
        "{}",
        '{"policy": "batch"}',
        '{"max_batch": 4, "max_wait_s": 0.1}',
        '{"policy": "batch", "max_batch": 0, "max_wait_s": 0.1}',
        '{"policy": "batch", "max_batch": 4, "max_wait_s": NaN}',
        '{"policy": "batch", "max_batch": 4, "max_wait_s": 1e999}',
        '{"policy": "batch", "max_batch": 1e999, "max_wait_s": 0.1}',
        '{"policy": "batch", "max_batch": {}, "max_wait_s": 0.1}',
        "[" * MOST_BYTES,
        json.dumps({"policy": "batch", "max_batch": 4, "max_wait_s": 0.1, "more": "x" * MOST_BYTES}),
        '{"policy": "batch", "max_batch": ' + "9" * 5000 + ', "max_wait_s": 0.1}',
        None,
        7,
        {"policy": "batch", "max_batch": 4, "max_wait_s": 0.1},
    ],
    ids=lambda text: repr(text)[:40],
)
def test_unreadable_plan_is_ignored(text: Any) -> None:
    assert buffer_of({"annotations": {ANNOTATION: text}}) is None


@pytest.mark.parametrize("status", [{}, {"annotations": None}, {"annotations": {}}, {"annotations": {"theirs": "x"}}])
def test_a_status_that_says_nothing_of_the_buffer_has_no_plan(status: dict[str, Any]) -> None:
    assert buffer_of(status) is None
