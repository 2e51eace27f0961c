"""Knative's annotations keep their meaning, and Gnomon's choose the policy."""

from __future__ import annotations

import pytest

from gnomon_autoscaler.registry import scaling_policy
from gnomon_core.errors import bad_request
from gnomon_core.settings import Settings
from gnomon_platforms.knative.autoscaler.configuration import ClusterSettings, cluster_settings
from gnomon_platforms.knative.autoscaler.objects import Template, live_revision, pa_facts
from gnomon_platforms.knative.autoscaler.rules import UNBOUNDED, Rules, rules
from gnomon_platforms.knative.batching.revisions import RevisionReader
from tests.unit.knative_autoscaler.played import pod_autoscaler
from tests.unit.knative_batching.test_revisions import BATCHES, revision

K = "autoscaling.knative.dev/"


def of(annotations: dict[str, str] | None = None, cluster: ClusterSettings | None = None, **spec: object) -> Rules:
    return rules(pa_facts(pod_autoscaler(annotations, **spec)), cluster or ClusterSettings())


def test_without_annotations_a_revision_is_scaled_as_by_knatives_own_class() -> None:
    found = of()
    settings = found.settings
    assert (settings.autoscaler, settings.stable_window_s, settings.panic_share, settings.panic_threshold) == (
        "kpa",
        60.0,
        0.1,
        2.0,
    )
    assert (settings.target_concurrency, settings.target_rps, settings.target_utilization) == (100.0, None, 0.7)
    assert (settings.scale.min, settings.scale.max, settings.scale.zero) == (0, UNBOUNDED, True)
    assert (found.initial_scale, found.burst_capacity, found.grace_s, found.panic_s) == (1, 211.0, 30.0, 6.0)
    assert settings.zero_grace_s == 0.0
    assert found.trouble == ""


@pytest.mark.parametrize(
    ("annotations", "concurrency", "takes", "aimed_at"),
    [
        ({}, 0, 100.0, 70.0),
        ({}, 10, 10.0, 7.0),
        ({K + "target": "4"}, 10, 4.0, 2.8),
        ({K + "target": "40"}, 10, 10.0, 7.0),
        ({K + "target": "40", K + "target-utilization-percentage": "50"}, 0, 40.0, 20.0),
        ({K + "metric": "rps"}, 10, 200.0, 140.0),
        ({K + "metric": "rps", K + "target": "40"}, 10, 40.0, 28.0),
        ({"gnomon/target-concurrency": "8"}, 0, 8.0, 5.6),
        ({"gnomon/target-concurrency": "8", K + "target": "4"}, 0, 4.0, 2.8),
        ({"gnomon/target-rps": "30"}, 10, 30.0, 21.0),
    ],
)
def test_what_a_pod_takes(annotations: dict[str, str], concurrency: int, takes: float, aimed_at: float) -> None:
    found = of(annotations, containerConcurrency=concurrency)
    assert found.total == takes
    target = found.settings.target_rps if found.by_rps else found.settings.target_concurrency
    assert target is not None
    assert target * found.settings.target_utilization == pytest.approx(aimed_at)


def test_bounds_times_and_both_spellings() -> None:
    found = of(
        {K + "minScale": "2", K + "max-scale": "7", K + "window": "2m", K + "scaleDownDelay": "90s", K + "initialScale": "4"}
    )
    scale = found.settings.scale
    assert (scale.min, scale.max, scale.zero) == (2, 7, False)
    assert (found.window_s, scale.down_window_s, scale.zero_duration_s) == (120.0, 90.0, 210.0)
    assert found.initial_scale == 4


def test_what_cannot_be_read_counts_as_not_said() -> None:
    found = of({K + "min-scale": "many", K + "window": "soon"})
    assert (found.min_scale, found.window_s) == (0, 60.0)


def test_a_first_scale_of_none_must_be_allowed() -> None:
    nothing = {K + "initial-scale": "0"}
    assert of(nothing).initial_scale == 1
    assert of(nothing, ClusterSettings(allow_zero_initial_scale=True)).initial_scale == 0


def test_a_revision_without_routes_is_not_kept_up() -> None:
    found = of({K + "min-scale": "3", K + "scale-to-zero-pod-retention-period": "1h"}, reachability="Unreachable")
    assert (found.min_scale, found.retention_s) == (0, 0.0)


def test_the_operators_settings_are_the_defaults() -> None:
    cluster = cluster_settings(
        {
            "stable-window": "30s",
            "container-concurrency-target-percentage": "0.5",
            "min-scale": "1",
            "_example": "stable-window: 9s",
        },
        {"progress-deadline": "90s", "scale-to-zero-grace-period": "often"},
    )
    found = of({}, cluster)
    assert (found.window_s, found.settings.target_utilization, found.min_scale) == (30.0, 0.5, 1)
    assert (found.activation_limit_s, found.grace_s) == (120.0, 30.0)


def test_a_metric_that_nobody_named_is_no_trouble() -> None:
    """Knative writes it so on each Revision whose class is none of its own."""
    found = of({K + "metric": ""})
    assert (found.by_rps, found.trouble) == (False, "")


def test_the_policy_is_what_the_revision_says_now() -> None:
    pa = pa_facts(pod_autoscaler({"gnomon/autoscaler": "od"}))
    assert rules(pa, ClusterSettings()).settings.autoscaler == "od"
    assert rules(pa, ClusterSettings(), {"gnomon/autoscaler": "fixed"}).settings.autoscaler == "fixed"
    assert rules(pa, ClusterSettings(), {}).settings.autoscaler == "kpa"


@pytest.mark.parametrize(
    ("annotations", "said"),
    [
        ({"gnomon/autoscaler": "magic"}, "no scaling policy"),
        ({"gnomon/autoscaler": "hpa"}, "CPU"),
        ({"gnomon/autoscaler": "batch+", "gnomon/cores": "none"}, "whole number"),
        ({"gnomon/max-batch": "none"}, "whole number"),
        ({K + "metric": "memory"}, "memory"),
    ],
)
def test_what_cannot_be_had_is_said_and_scaled_by_kpa(annotations: dict[str, str], said: str) -> None:
    def check(settings: Settings) -> None:
        scaling_policy(settings.autoscaler, settings)

    found = rules(pa_facts(pod_autoscaler(annotations)), ClusterSettings(), None, check)
    assert found.settings.autoscaler == "kpa"
    assert said in found.trouble
    assert found.cores is None


@pytest.mark.parametrize("name", ["batch", "batch+"])
def test_policies_that_plan_buffers_are_taken(name: str) -> None:
    found = rules(pa_facts(pod_autoscaler({"gnomon/autoscaler": name})), ClusterSettings())
    assert (found.settings.autoscaler, found.settings.max_batch, found.trouble) == (name, 8, "")


@pytest.mark.parametrize(
    ("annotations", "cores", "given"),
    [({}, 2, None), ({"gnomon/cores": "4"}, 4, 4), ({"gnomon/autoscaler": "magic", "gnomon/cores": "4"}, 2, None)],
)
def test_pods_have_the_cores_of_their_template_where_nobody_has_said_others(
    annotations: dict[str, str], cores: int, given: int | None
) -> None:
    """Policies by the default of one would shrink pods of two."""

    def check(settings: Settings) -> None:
        scaling_policy(settings.autoscaler, settings)

    found = rules(pa_facts(pod_autoscaler(annotations)), ClusterSettings(), None, check, Template(2))
    assert (found.settings.cores, found.cores) == (cores, given)


@pytest.mark.parametrize(
    "annotations",
    [{}, {"gnomon/slo-ms": "20000"}, {"gnomon/slo-ms": "100"}, {"gnomon/deadline-ms": "2000"}, {"gnomon/cores": "4"}],
)
def test_a_plan_is_for_the_objective_and_the_deadline_that_its_gateways_go_by(annotations: dict[str, str]) -> None:
    """By an objective of 30 s batches were to wait longer than the 10 s that Knative gives their requests."""
    document = revision({**BATCHES, **annotations}, timeoutSeconds=10)
    gateways = RevisionReader(lambda _: None)(document).spec.settings
    live = live_revision(document)
    found = rules(pa_facts(pod_autoscaler()), ClusterSettings(), live.annotations, None, live.template).settings
    assert (found.slo_s, found.deadline_s, found.cores) == (gateways.slo_s, gateways.deadline_s, gateways.cores)
    assert found.slo_s <= 10.0


def test_whatever_a_check_has_against_settings_is_said() -> None:
    def check(settings: Settings) -> None:
        if settings.autoscaler == "asyfunc":
            raise bad_request("no_profile", "There is none.")

    found = rules(pa_facts(pod_autoscaler({"gnomon/autoscaler": "asyfunc"})), ClusterSettings(), None, check)
    assert found.trouble == "kpa is used: There is none."


def test_a_revision_may_say_how_large_its_pods_are() -> None:
    assert of({}).cores is None
    assert of({"gnomon/cores": "2"}).cores == 2
    pa = pa_facts(pod_autoscaler({"gnomon/cores": "2"}))
    assert rules(pa, ClusterSettings(), {"gnomon/cores": "1"}).cores == 1
    assert rules(pa, ClusterSettings(), {}).cores is None


def test_policies_that_count_batches_take_a_pod_to_hold_what_it_may() -> None:
    assert of({"gnomon/autoscaler": "od"}, containerConcurrency=8).settings.max_batch == 8
    assert of({"gnomon/autoscaler": "od", "gnomon/max-batch": "2"}, containerConcurrency=8).settings.max_batch == 2
