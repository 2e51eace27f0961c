"""Which Revisions are buffered, and what their pods are sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gnomon_core.errors import bad_request
from gnomon_core.settings import Settings
from gnomon_platforms.knative.batching.revisions import RevisionReader, buffered

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
def test_a_revision_says_which_token_its_pods_have(given: dict[str, Any], key: str) -> None:
    """As the Body in them looks for it: first the variable, then the file."""
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


@pytest.mark.parametrize("wrong", [{"gnomon/max-batch": "many"}, {"gnomon/unheard-of": "1"}, {"gnomon/scheduler": "unheard-of"}])
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
def test_pods_have_the_cores_that_the_revision_says_or_those_of_its_template(
    annotations: dict[str, str], resources: dict[str, Any], cores: int
) -> None:
    """What its batches take is told of pods of that size."""
    document = revision({**BATCHES, **annotations})
    document["spec"]["containers"][0]["resources"] = resources
    assert RevisionReader(anything)(document).spec.settings.cores == cores
