"""Queries get the variant and worker that INFaaS's Algorithm 1 chooses, by the states of instances in its Figure 4."""

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.variants import Choice, Query, Variant, VariantState
from gnomon_gateway.variants.selection import Rule, VariantSelector, distance, expected_s, preference
from gnomon_gateway.variants.states import Lifecycle, Measurement, Thresholds
from tests.refusals import refused


def variant(name: str, *, accuracy: float, latency_s: float, cost: float, load_s: float = 1.0, hardware: str = "cpu") -> Variant:
    architecture = name.split("-", maxsplit=1)[0]
    return Variant(
        name, architecture, "onnx", "fp32", 1, 1, accuracy, load_s, {1: latency_s}, 2**30, 1 / latency_s, cost, hardware
    )


SMALL = variant("mobilenet-cpu", accuracy=0.70, latency_s=0.04, cost=1.0)
LARGE = variant("resnet50-cpu", accuracy=0.76, latency_s=0.2, cost=1.0, load_s=2.0)
QUICK = variant("resnet50-gpu", accuracy=0.76, latency_s=0.015, cost=16.0, load_s=4.0, hardware="gpu")


@pytest.fixture
def selector() -> VariantSelector:
    return VariantSelector([SMALL, LARGE, QUICK])


def test_active_variant_is_chosen_before_one_that_must_load(selector: VariantSelector) -> None:
    selector.instance_loaded(QUICK.id, "gpu1")
    choice = selector.select(Query(accuracy=0.75, latency_s=0.3))
    assert (choice.variant, choice.worker, choice.loaded, choice.satisfies) == (QUICK, "gpu1", True, True)


def test_cheapest_active_variant_answers_on_its_least_loaded_worker_as_printed() -> None:
    selector = VariantSelector([SMALL, LARGE, QUICK], Rule.PRINTED)
    selector.instance_loaded(QUICK.id, "gpu1")
    selector.instance_loaded(LARGE.id, "a", load=0.6)
    selector.instance_loaded(LARGE.id, "b", load=0.2)
    assert selector.select(Query(accuracy=0.75)).worker == "b"
    selector.instance_changed(LARGE.id, "b", load=0.7)
    choice = selector.select(Query(accuracy=0.75))
    assert (choice.variant, choice.worker) == (LARGE, "a")


def test_queries_are_shared_among_loaded_variants_by_what_is_ahead_of_them() -> None:
    """20 queries at once: the quick variant gets as many as it answers until the slower one would have answered one."""
    pending = {QUICK.id: 0, LARGE.id: 0}
    selector = VariantSelector([SMALL, LARGE, QUICK])
    for name in pending:
        selector.instance_loaded(name, "", pending=partial(pending.__getitem__, name))
    for _ in range(20):
        pending[selector.select(Query(accuracy=0.75)).variant.id] += 1
    assert pending == {QUICK.id: 19, LARGE.id: 1}
    assert expected_s(QUICK, 12, 1) <= expected_s(LARGE, 0, 1) <= expected_s(QUICK, 19, 1)


def test_query_goes_to_the_worker_with_least_ahead(selector: VariantSelector) -> None:
    selector.instance_loaded(LARGE.id, "a", load=0.1, pending=lambda: 3)
    selector.instance_loaded(LARGE.id, "b", load=0.9, instances=3, pending=lambda: 3)
    selector.instance_loaded(LARGE.id, "c", load=0.5, pending=lambda: 2)
    assert selector.select(Query(accuracy=0.75)).worker == "b"


def test_query_that_active_instances_answer_late_goes_where_it_is_answered_first(selector: VariantSelector) -> None:
    ahead = [2]
    selector.instance_loaded(LARGE.id, "a", pending=lambda: ahead[0])
    selector.instance_loaded(QUICK.id, "g", VariantState.INTERFERED, pending=lambda: 10)
    query = Query(accuracy=0.75, latency_s=0.61)
    assert selector.select(query).worker == "a"  # two times 0.2 s, and its own
    ahead[0] = 3
    assert selector.select(query).worker == "g"  # after 0.165 s
    selector.instance_loaded(QUICK.id, "g", VariantState.OVERLOADED, pending=lambda: 1000)
    assert selector.select(query).worker == "a"  # after 0.8 s, and QUICK's instance after 15 s
    ahead[0] = 100
    assert selector.select(query).worker == "g"  # both late
    selector.instance_unloaded(QUICK.id, "g")
    assert selector.select(query).worker == "a"  # loading another variant is the policy's decision
    selector.instance_unloaded(LARGE.id, "a")
    assert not selector.select(query).loaded


def test_unloaded_variant_that_answers_first_starts_on_the_least_utilized_worker(selector: VariantSelector) -> None:
    for worker, hardware, used in (("a", "cpu", 0.5), ("b", "cpu", 0.1), ("g", "gpu", 0.0)):
        selector.worker_changed(worker, hardware, used)
    choice = selector.select(Query(accuracy=0.75))
    assert (choice.variant, choice.worker, choice.loaded) == (LARGE, "b", False)


def test_unloaded_variant_without_its_hardware_is_not_started(selector: VariantSelector) -> None:
    selector.worker_changed("a", "cpu", 0.0)
    choice = selector.select(Query(latency_s=0.02))
    assert (choice.variant, choice.worker, choice.satisfies, choice.shortfall) == (QUICK, "", False, "no worker has gpu")
    selector.worker_changed("g", "gpu", 0.0)
    assert selector.select(Query(latency_s=0.02)).worker == "g"


@pytest.mark.parametrize("state", [VariantState.OVERLOADED, VariantState.INTERFERED])
def test_strained_instance_is_avoided_while_anything_else_satisfies_as_printed(state: VariantState) -> None:
    selector = VariantSelector([SMALL, LARGE, QUICK], Rule.PRINTED)
    selector.instance_loaded(LARGE.id, "a", state, load=1.1)
    assert selector.select(Query(accuracy=0.75, latency_s=0.3)).variant is QUICK
    selector.instance_loaded(QUICK.id, "g", state, load=1.0)
    choice = selector.select(Query(accuracy=0.75, latency_s=0.3))
    assert (choice.variant, choice.worker, choice.loaded, choice.satisfies) == (QUICK, "g", True, True)
    selector.instance_changed(LARGE.id, "a", state=VariantState.ACTIVE)
    assert selector.select(Query(accuracy=0.75, latency_s=0.3)).variant is LARGE


def test_other_worker_serves_where_one_is_overloaded(selector: VariantSelector) -> None:
    selector.instance_loaded(LARGE.id, "a", VariantState.OVERLOADED, load=0.1)
    selector.instance_loaded(LARGE.id, "b", load=0.9)
    assert selector.select(Query(variant=LARGE.id)).worker == "b"


def test_nearest_variant_says_what_it_misses(selector: VariantSelector) -> None:
    selector.instance_loaded(LARGE.id, "a")
    choice = selector.select(Query(accuracy=0.8, latency_s=0.25, cost_per_s=2.0))
    assert (choice.variant, choice.worker, choice.satisfies) == (LARGE, "a", False)
    assert choice.shortfall == "accuracy 0.76 instead of 0.8"
    choice = selector.select(Query(architecture="resnet50", latency_s=0.01))
    assert (choice.variant, choice.loaded, choice.shortfall) == (QUICK, False, "latency 0.015 s instead of 0.01 s")


WISHED = Query(accuracy=0.75, latency_s=0.5, accuracy_floor=0.65)
"""A query that accepts less accuracy. SMALL has 0.7, LARGE 0.76."""


def test_less_accurate_variant_answers_while_the_wished_ones_are_late(selector: VariantSelector) -> None:
    ahead = [0]
    selector.instance_loaded(LARGE.id, "a", pending=lambda: ahead[0])
    selector.instance_loaded(SMALL.id, "b")
    assert selector.select(WISHED) == Choice(LARGE, "a")
    ahead[0] = 2  # LARGE would answer after 0.6 s
    assert selector.select(WISHED) == Choice(SMALL, "b", degraded=True)
    assert selector.select(replace(WISHED, accuracy_floor=None)) == Choice(LARGE, "a"), "this query accepts no less"
    assert selector.select(replace(WISHED, accuracy_floor=0.71)) == Choice(LARGE, "a"), "SMALL is below the floor"
    ahead[0] = 1
    assert selector.select(WISHED) == Choice(LARGE, "a")


def test_degraded_answer_is_the_most_accurate_one_in_time() -> None:
    variants = [variant(f"m{n}-cpu", accuracy=0.5 + n / 10, latency_s=0.1 * n, cost=1.0) for n in range(1, 5)]
    selector = VariantSelector(variants)
    pending = {loaded.id: 0 for loaded in variants}
    for loaded in variants[:3]:
        selector.instance_loaded(loaded.id, "", pending=partial(pending.__getitem__, loaded.id))
    query = Query(accuracy=0.9, accuracy_floor=0.6, latency_s=0.45)
    assert selector.select(query) == Choice(variants[2], degraded=True)
    pending["m3-cpu"] = 1  # 0.6 s
    assert selector.select(query) == Choice(variants[1], degraded=True)
    pending["m2-cpu"] = 2
    assert selector.select(query) == Choice(variants[0], degraded=True)
    selector.instance_changed("m1-cpu", "", state=VariantState.OVERLOADED)
    assert selector.select(query) == Choice(variants[0], degraded=True), "Overloaded, and in time"


def test_query_without_a_latency_is_degraded_while_the_wished_variant_is_overloaded(selector: VariantSelector) -> None:
    query = Query(accuracy=0.75, accuracy_floor=0.65)
    selector.instance_loaded(LARGE.id, "a", pending=lambda: 100)
    selector.instance_loaded(SMALL.id, "b")
    assert selector.select(query) == Choice(LARGE, "a")
    selector.instance_changed(LARGE.id, "a", state=VariantState.OVERLOADED)
    assert selector.select(query) == Choice(SMALL, "b", degraded=True)
    selector.instance_changed(SMALL.id, "b", state=VariantState.OVERLOADED)
    assert selector.select(query) == Choice(LARGE, "a")


def test_late_query_keeps_the_wished_variant_where_less_accuracy_would_be_late_as_well(selector: VariantSelector) -> None:
    selector.instance_loaded(LARGE.id, "a", pending=lambda: 10)
    selector.instance_loaded(SMALL.id, "b", pending=lambda: 20)
    assert selector.select(WISHED) == Choice(LARGE, "a")


def test_wished_variant_is_loaded_only_where_no_accepted_one_is_loaded(selector: VariantSelector) -> None:
    assert selector.select(WISHED) == Choice(LARGE, loaded=False)
    selector.instance_loaded(SMALL.id, "b", VariantState.OVERLOADED, pending=lambda: 100)
    assert selector.select(WISHED) == Choice(SMALL, "b", degraded=True)


def test_accuracy_that_no_variant_has_in_that_time_is_degraded_to_the_floor_and_no_further(selector: VariantSelector) -> None:
    quick = Query(accuracy=0.75, latency_s=0.05, accuracy_floor=0.7, cost_per_s=2.0)
    assert selector.select(quick) == Choice(SMALL, loaded=False, degraded=True)
    choice = selector.select(Query(accuracy=0.9, latency_s=0.05, accuracy_floor=0.8))
    assert (choice.satisfies, choice.degraded, choice.shortfall) == (False, False, "accuracy 0.76 instead of 0.8")


def test_printed_rule_knows_no_floors() -> None:
    selector = VariantSelector([SMALL, LARGE], Rule.PRINTED)
    selector.instance_loaded(LARGE.id, "a", VariantState.OVERLOADED)
    selector.instance_loaded(SMALL.id, "b")
    assert selector.select(WISHED) == Choice(LARGE, "a")


@pytest.mark.parametrize("values", [{"accuracy_floor": 0.5}, {"accuracy": 0.5, "accuracy_floor": 0.6}])
def test_floor_without_a_wished_accuracy_above_it_is_refused(values: dict[str, float]) -> None:
    with refused(400, "invalid_query", hint="a floor from 0 to it"):
        Query(**values)


def test_query_by_name_is_answered_by_that_model(selector: VariantSelector) -> None:
    selector.instance_loaded(SMALL.id, "a")
    assert selector.select(Query(architecture="resnet50")).variant is LARGE
    assert selector.select(Query(variant=QUICK.id)).variant is QUICK


@pytest.mark.parametrize(
    ("query", "code", "hint"),
    [
        (Query(architecture="resnet5"), "unknown_architecture", "Did you mean resnet50?"),
        (Query(variant="resnet50-gpuu"), "unknown_variant", "Did you mean resnet50-gpu?"),
        (Query(architecture="mobilenet", variant=QUICK.id), "unknown_variant", "It is of resnet50."),
    ],
)
def test_unknown_name_is_not_found_with_the_nearest_name(selector: VariantSelector, query: Query, code: str, hint: str) -> None:
    with pytest.raises(GnomonError) as caught:
        selector.select(query)
    assert (caught.value.status, caught.value.code, caught.value.hint) == (404, code, hint)


def test_worker_that_ended_takes_its_instances_along(selector: VariantSelector) -> None:
    selector.worker_changed("a", "cpu", 0.0)
    selector.worker_changed("b", "cpu", 0.5)
    selector.instance_loaded(SMALL.id, "a")
    selector.worker_gone("a")
    choice = selector.select(Query())
    assert (choice.variant, choice.worker, choice.loaded) == (SMALL, "b", False)


def test_application_without_variants_is_unavailable() -> None:
    with pytest.raises(GnomonError) as caught:
        VariantSelector([]).select(Query())
    assert (caught.value.status, caught.value.code) == (503, "no_variants")


def test_two_variants_of_one_id_are_refused() -> None:
    with pytest.raises(GnomonError, match="same id"):
        VariantSelector([SMALL, replace(SMALL, accuracy=0.5)])


def test_nearest_of_many_variants_is_the_nearest_of_few() -> None:
    """200 variants of which none is better than another: more accurate ones are dearer."""
    many = [variant(f"m{n}-cpu", accuracy=0.5 + n / 1000, latency_s=0.1, cost=1.0 + n) for n in range(200)]
    for asked in (Query(accuracy=0.8, cost_per_s=100.0), Query(accuracy=0.9, latency_s=0.05), Query(cost_per_s=0.5)):
        expected = min(many, key=lambda variant: (distance(variant, asked), preference(variant)))
        assert VariantSelector(many).select(asked).variant is expected


INACTIVE, ACTIVE, OVERLOADED, INTERFERED = VariantState
PEAK_RPS = 100.0
ACTIVE_NOW = Lifecycle().loaded()


def period(rate_rps: float, slowdown: float = 1.0, batches: int = 20, spread: float = 0.0) -> Measurement:
    return Measurement(rate_rps, PEAK_RPS, slowdown, batches, spread)


def states(*measurements: Measurement, begin: Lifecycle = ACTIVE_NOW, thresholds: Thresholds | None = None) -> list[VariantState]:
    found = []
    for measurement in measurements:
        begin = begin.measured(measurement, thresholds or Thresholds())
        found.append(begin.state)
    return found


def test_variant_is_inactive_until_loaded_and_after_unloading() -> None:
    assert Lifecycle().state is INACTIVE
    assert states(period(200.0), begin=Lifecycle()) == [INACTIVE]
    assert ACTIVE_NOW.state is ACTIVE
    for measurement in (period(50.0), period(200.0), period(50.0, slowdown=2.0)):
        assert ACTIVE_NOW.measured(measurement).unloaded() == Lifecycle()


@pytest.mark.parametrize(
    ("measurements", "expected"),
    [
        ((period(99.9), period(100.0)), [ACTIVE, OVERLOADED]),
        ((period(50.0, 1.19), period(50.0, 1.2)), [ACTIVE, INTERFERED]),
        ((period(100.0, 1.5),), [OVERLOADED]),  # slow and at its peak is overloaded
        ((period(50.0, 1.5), period(100.0, 1.5)), [INTERFERED, OVERLOADED]),
        ((period(100.0), period(50.0, 1.5)), [OVERLOADED, INTERFERED]),  # contended; QPS < peak
        ((period(100.0), period(90.0), period(90.0)), [OVERLOADED, OVERLOADED, ACTIVE]),
        ((period(50.0, 1.5), period(50.0, 1.0), period(50.0, 1.0)), [INTERFERED, INTERFERED, ACTIVE]),
    ],
)
def test_each_transition_of_figure_4(measurements: Sequence[Measurement], expected: list[VariantState]) -> None:
    assert states(*measurements) == expected


def test_overload_ends_where_the_autoscalers_headroom_is_back() -> None:
    assert states(period(100.0), period(96.0), period(96.0), period(96.0)) == [OVERLOADED] * 4  # 100 / 96 < 1.05
    assert states(period(100.0), period(95.0), period(95.0)) == [OVERLOADED, OVERLOADED, ACTIVE]  # 100 / 95 > 1.05


def test_recovery_takes_two_periods_in_succession() -> None:
    assert states(period(100.0), period(50.0), period(100.0), period(50.0), period(50.0)) == [OVERLOADED] * 4 + [ACTIVE]


def test_contention_ends_at_half_of_the_excess() -> None:
    assert states(period(50.0, 1.2), period(50.0, 1.15), period(50.0, 1.15), period(50.0, 1.15)) == [INTERFERED] * 4
    assert states(period(50.0, 1.2), period(50.0, 1.09), period(50.0, 1.09)) == [INTERFERED, INTERFERED, ACTIVE]


def test_spread_of_the_profile_is_not_contention() -> None:
    assert states(period(50.0, 1.3, spread=0.15)) == [ACTIVE]
    assert states(period(50.0, 1.4, spread=0.15)) == [INTERFERED]


def test_few_batches_say_nothing_about_contention() -> None:
    assert states(period(1.0, 3.0, batches=2)) == [ACTIVE]


def test_interfered_instance_without_batches_is_tried_again_later() -> None:
    idle = period(0.0, 1.0, batches=0)
    assert states(period(50.0, 1.5), *[idle] * 5) == [INTERFERED] * 5 + [ACTIVE]
    assert states(period(50.0, 1.5), *[idle] * 4, period(50.0, 1.5), idle) == [INTERFERED] * 7
    assert states(period(50.0, 1.5), idle, period(100.0, 1.0, batches=0)) == [INTERFERED, INTERFERED, OVERLOADED]


def test_longer_confirmation_can_be_asked_for() -> None:
    patient = Thresholds(worse_periods=3)
    assert states(period(100.0), period(100.0), period(50.0), *[period(100.0)] * 3, thresholds=patient) == [ACTIVE] * 5 + [
        OVERLOADED
    ]


def test_noise_at_the_peak_changes_the_state_less_often_than_without_hysteresis() -> None:
    """Poisson counts of two seconds around 97 % of the peak, for an hour."""
    rng = random.Random(1)
    rates = [rng.gauss(97.0, (97.0 / 2.0) ** 0.5) for _ in range(1800)]
    none = Thresholds(headroom=1.0, better_periods=1)

    def changes(thresholds: Thresholds) -> int:
        found = states(*[period(rate) for rate in rates], thresholds=thresholds)
        return sum(first is not second for first, second in pairwise(found))

    assert changes(Thresholds()) * 2 < changes(none)
