"""Settings of single policies on Revisions: those of a policy that nobody knows are refused, as where functions are deployed."""

from __future__ import annotations

import logging

import pytest

from gnomon_autoscaler.registry import BUILT_IN
from gnomon_core.settings import Settings
from gnomon_gateway.functions.validation import scheduler_of
from gnomon_gateway.scheduling.registry import SCHEDULING
from gnomon_platforms.knative.autoscaler.configuration import ClusterSettings
from gnomon_platforms.knative.autoscaler.objects import pa_facts
from gnomon_platforms.knative.autoscaler.rules import Rules, rules
from gnomon_platforms.knative.batching.revisions import RevisionReader
from gnomon_server.knative_autoscaler import RevisionScaling, capabilities
from gnomon_server.knative_gateway import ScaledByClass
from tests.unit.knative_autoscaler.played import pod_autoscaler
from tests.unit.knative_batching.test_revisions import BATCHES, revision

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


def test_what_its_own_policy_has_no_use_for_is_refused_too() -> None:
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
def test_those_of_known_policies_are_not_its_business(annotations: dict[str, str]) -> None:
    """As where functions are deployed: a function may change its policy while it serves, and back."""
    found = scaled({"gnomon/autoscaler": "od", **annotations})
    assert (found.settings.autoscaler, found.trouble) == ("od", "")


def test_the_gateway_leaves_the_settings_out_and_serves_on(caplog: pytest.LogCaptureFixture) -> None:
    read = RevisionReader(buffered)
    with caplog.at_level(logging.WARNING, "gnomon.knative"):
        facts = read(revision({**BATCHES, "gnomon/exactyl.count": "3"}))
    assert (facts.buffered, facts.spec.settings.max_batch, facts.spec.settings.own) == (True, 1, ())
    assert UNKNOWN in caplog.text
