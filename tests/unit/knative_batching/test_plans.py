"""By which plan a Revision's batches are made, and what a PodAutoscaler's status says of one."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from gnomon_core.functions import read_deployment
from gnomon_core.scaling import SetBufferPlan
from gnomon_core.settings import Settings
from gnomon_platforms.knative.batching.revisions import RevisionFacts, RevisionReader, in_force
from gnomon_platforms.knative.buffer_status import ANNOTATION, MOST_BYTES, BufferStatus, buffer_of, with_buffer_plan
from tests.unit.knative_batching.test_revisions import BATCHES, VARIABLE, anything, revision

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
