"""A PodAutoscaler may be heard of before its Revision: they are watched one beside the other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from gnomon_platforms.knative.autoscaler.configuration import ClusterSettings
from gnomon_platforms.knative.autoscaler.objects import LiveRevision
from gnomon_platforms.knative.autoscaler.revision import RevisionInstances, Surroundings
from tests.unit.knative_autoscaler.played import Played


def test_nothing_is_said_of_a_template_that_is_not_known_yet() -> None:
    """An Event `BodiesAlone` of `NoVolume` would stay for an hour, on a Revision that has the volume."""
    played, live = Played(), dict[str, LiveRevision]()
    around = SimpleNamespace(
        live=lambda key: live.get(key.name),
        brain=SimpleNamespace(makes_shadows=lambda _: True),
        cluster=lambda: ClusterSettings(csi_volumes=True),
        shadows=None,
    )
    instances = RevisionInstances(played.facts.key, cast("Surroundings", around))
    assert instances.shadows(played.rules.settings) is None
    live["f-00001"] = LiveRevision({}, mounted=False)
    said = instances.shadows(played.rules.settings)
    assert said is not None
    assert said.reason == "NoVolume"
