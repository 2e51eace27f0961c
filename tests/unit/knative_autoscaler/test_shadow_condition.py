"""Why Bodies of a Revision work alone, in the order in which one mends it, and where it is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gnomon_platforms.knative.autoscaler.configuration import cluster_settings
from gnomon_platforms.knative.autoscaler.objects import Condition, conditions
from gnomon_platforms.knative.autoscaler.planning import plan
from gnomon_platforms.knative.autoscaler.status import Means, shadows
from tests.unit.knative_autoscaler.played import Played

ALL = Means(allowed=True, mounted=True, told=True, pooled=True)


@pytest.mark.parametrize(
    ("means", "reason", "said"),
    [
        (Means(allowed=False, mounted=False, told=False, pooled=False), "VolumesDisabled", "kubernetes.podspec-volumes-csi"),
        (Means(allowed=True, mounted=False, told=False, pooled=False), "NoVolume", "node.gnomon"),
        (Means(allowed=True, mounted=True, told=False, pooled=False), "NotConfigured", "--coordinator-token"),
        (Means(allowed=True, mounted=True, told=True, pooled=False), "NoPool", "No node"),
    ],
)
def test_what_is_missing_is_told(means: Means, reason: str, said: str) -> None:
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
    [written] = [one for one in status["conditions"] if one["type"] == "Shadows"]
    assert (written["status"], written["reason"], written["severity"]) == ("False", "NoPool", "Info")
    # Ready does not hang on it.
    assert conditions(status)["Ready"].status == "True"
    assert conditions(status)["Shadows"] == Condition("False", "NoPool", alone.message, conditions(status)["Shadows"].since_s)
