"""Settings and status of a PodAutoscaler."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from aiohttp import web

from gnomon_autoscaler.registry import BUILT_IN, scaling_policy
from gnomon_core.errors import bad_request
from gnomon_core.settings import Settings
from gnomon_gateway.functions.validation import scheduler_of
from gnomon_gateway.scheduling.registry import SCHEDULING
from gnomon_platforms.knative.autoscaler import public_endpoints as probe
from gnomon_platforms.knative.autoscaler.objects import Condition, Template, conditions, live_revision, pa_facts
from gnomon_platforms.knative.autoscaler.planning import ShadowPrerequisites, plan, shadows
from gnomon_platforms.knative.autoscaler.rules import MOST_PODS, ClusterSettings, Rules, cluster_settings, rules
from gnomon_platforms.knative.batching.revisions import RevisionReader
from gnomon_server.knative_autoscaler import RevisionScaling, capabilities
from gnomon_server.knative_gateway import ScaledByClass
from tests.unit.knative_autoscaler.played import Played, pod_autoscaler
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
    assert (settings.scale.min, settings.scale.max, settings.scale.zero) == (0, MOST_PODS, True)
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
def test_capacity_of_a_pod(annotations: dict[str, str], concurrency: int, takes: float, aimed_at: float) -> None:
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


def test_unreadable_setting_counts_as_absent() -> None:
    found = of({K + "min-scale": "many", K + "window": "soon"})
    assert (found.min_scale, found.window_s) == (0, 60.0)


@pytest.mark.parametrize("named", ["min-scale", "max-scale", "initial-scale", "activation-scale"])
def test_pods_beyond_all_clusters_do_not_fill_the_memory_that_all_users_share(named: str) -> None:
    """Knative accepts 2,147,483,647, and the class has an entry for each pod that a Revision wants."""
    for found in (of({K + named: "2147483647"}), of({}, cluster_settings({named: "2147483647"}))):
        counts = [found.min_scale, found.max_scale, found.initial_scale, found.activation_scale]
        assert max(*counts, found.settings.scale.min, found.settings.scale.max) == MOST_PODS
    assert of({K + named: "-3"}) == of()


@pytest.mark.parametrize("written", ["nan", "inf", "-inf"])
def test_number_that_is_not_finite_counts_as_absent(written: str) -> None:
    """Knative accepts it; in a ConfigMap it would stop every Revision."""
    for named in ("target", "target-utilization-percentage", "target-burst-capacity", "panic-window-percentage"):
        assert of({K + named: written}) == of()
    keys = ("container-concurrency-target-default", "target-burst-capacity", "activator-capacity")
    assert cluster_settings(dict.fromkeys(keys, written)) == ClusterSettings()


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
        ({"gnomon/model": "app:photos"}, "from the template gnomon-application"),
        ({K + "metric": "memory"}, "memory"),
    ],
)
def test_unavailable_policy_falls_back_to_kpa_with_a_reason(annotations: dict[str, str], said: str) -> None:
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


def test_every_objection_to_settings_is_reported() -> None:
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


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def service(answer: Handler, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """The parts behind the address of a Service."""
    application = web.Application()
    application.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    monkeypatch.setitem(probe.PORTS, "http1", runner.addresses[0][1])
    yield
    await runner.cleanup()


@pytest.mark.parametrize(
    ("body", "status", "found"), [("activator", 200, True), ("queue", 200, False), ("activator", 503, False)]
)
async def test_only_an_activator_that_says_so_counts(
    body: str, status: int, *, found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, str]] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append({"path": request.path, **{name: request.headers.get(name, "") for name in probe.HEADERS}})
        return web.Response(text=body, status=status)

    async with service(answer, monkeypatch):
        assert await probe.proxied("127.0.0.1", "http1") is found
    assert asked == [{"path": "/healthz", "K-Network-Probe": "activator", "User-Agent": "Knative-Autoscaling-Probe"}]
    assert not await probe.proxied("127.0.0.1", "http1")


async def test_a_connection_that_was_made_too_early_does_not_answer_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node's rules lead a new connection to where the Service is now, and leave an old one with whom it has reached."""
    made: list[object] = []

    async def answer(request: web.Request) -> web.Response:
        if request.transport not in made:
            made.append(request.transport)
        # The first to come has reached the pod, whose queue-proxy knows no such probe, and keeps the connection.
        return web.Response(status=400) if request.transport is made[0] else web.Response(text="activator")

    async with service(answer, monkeypatch):
        assert [await probe.proxied("127.0.0.1", "http1") for _ in range(3)] == [False, True, True]


ALL = ShadowPrerequisites(allowed=True, mounted=True, coordinators=True, pooled=True)


@pytest.mark.parametrize(
    ("means", "reason", "said"),
    [
        (
            ShadowPrerequisites(allowed=False, mounted=False, coordinators=False, pooled=False),
            "VolumesDisabled",
            "kubernetes.podspec-volumes-csi",
        ),
        (ShadowPrerequisites(allowed=True, mounted=False, coordinators=False, pooled=False), "NoVolume", "node.gnomon"),
        (
            ShadowPrerequisites(allowed=True, mounted=True, coordinators=False, pooled=False),
            "NotConfigured",
            "--coordinator-token",
        ),
        (ShadowPrerequisites(allowed=True, mounted=True, coordinators=True, pooled=False), "NoPool", "No node"),
    ],
)
def test_missing_requirement_of_shadows_is_reported(means: ShadowPrerequisites, reason: str, said: str) -> None:
    found = shadows(means)
    assert (found.status, found.reason) == ("False", reason)
    assert said in found.message
    assert found.message.endswith("Bodies work alone.")


def test_nothing_is_missing_also_where_the_feature_was_switched_off_later() -> None:
    assert shadows(ALL).status == shadows(replace(ALL, allowed=False)).status == "True"


@pytest.mark.parametrize(
    ("said", "may"), [("enabled", True), ("Enabled", True), ("allowed", False), ("disabled", False), ("?", False)]
)
def test_the_feature_is_knatives(said: str, may: bool) -> None:  # noqa: FBT001 - a row of the table
    assert cluster_settings({"kubernetes.podspec-volumes-csi": said}).csi_volumes is may


def test_the_condition_informs_and_goes_with_the_policy() -> None:
    played = Played()
    played.until(lambda: played.condition("Ready") == "True")
    assert "Shadows" not in conditions(played.pa["status"])
    seen = played.seen()
    alone = shadows(replace(ALL, pooled=False))
    status = plan(replace(seen, demand=replace(seen.demand, shadows=alone))).status
    [written] = [condition for condition in status["conditions"] if condition["type"] == "Shadows"]
    assert (written["status"], written["reason"], written["severity"]) == ("False", "NoPool", "Info")
    # Ready does not hang on it.
    assert conditions(status)["Ready"].status == "True"
    assert conditions(status)["Shadows"] == Condition("False", "NoPool", alone.message, conditions(status)["Shadows"].since_s)


UNKNOWN = "annotation 'gnomon/exactyl.count' is a setting of a policy 'exactyl', which is not known."


def scaled(annotations: dict[str, str]) -> Rules:
    """By the class, with the policies that are built in."""
    scaling = RevisionScaling(BUILT_IN, SCHEDULING.built_in, lambda: capabilities(resizes=True))
    return rules(pa_facts(pod_autoscaler(annotations)), ClusterSettings(), None, scaling.check)


def buffered(settings: Settings) -> None:
    """By the gateway of Revisions."""
    scheduler_of(settings, ScaledByClass(BUILT_IN, lambda _: None), SCHEDULING.built_in)


def test_the_class_says_so_and_scales_by_kpa() -> None:
    found = scaled({"gnomon/autoscaler": "od", "gnomon/exactyl.count": "3"})
    assert found.settings.autoscaler == "kpa"
    assert found.trouble.startswith(f"kpa is used: {UNKNOWN} Known ones: ")


def test_setting_without_use_for_the_policy_is_refused() -> None:
    found = scaled({"gnomon/autoscaler": "od", "gnomon/od.count": "3"})
    assert "annotation 'gnomon/od.count' is no setting of od" in found.trouble


@pytest.mark.parametrize(
    "annotations",
    [
        {"gnomon/kpa.count": "3"},
        {"gnomon/adaptive.count": "3"},
        {"gnomon/mine.count": "3", "gnomon/scheduler": "mine"},
    ],
    ids=["of another policy", "of a scheduling policy", "of a scheduling policy that the gateway alone has"],
)
def test_settings_of_other_policies_are_not_reported(annotations: dict[str, str]) -> None:
    """Deployments of functions treat them so: a function may change its policy while it serves, and back."""
    found = scaled({"gnomon/autoscaler": "od", **annotations})
    assert (found.settings.autoscaler, found.trouble) == ("od", "")


def test_the_gateway_leaves_the_settings_out_and_serves_on(caplog: pytest.LogCaptureFixture) -> None:
    read = RevisionReader(buffered)
    with caplog.at_level(logging.WARNING, "gnomon.knative"):
        facts = read(revision({**BATCHES, "gnomon/exactyl.count": "3"}))
    assert (facts.buffered, facts.spec.settings.max_batch, facts.spec.settings.own) == (True, 1, ())
    assert UNKNOWN in caplog.text
