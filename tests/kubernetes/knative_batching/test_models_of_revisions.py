"""A gateway of Revisions that was told of models, on a real API server: batches are sized by what was measured of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gnomon_gateway.functions import manager
from gnomon_platforms.nodes.models import ServedModels
from gnomon_profiler.repository import DirectoryRepository
from tests.cluster.client import Cluster
from tests.kubernetes.knative_autoscaler.played_knative import PlayedKnative
from tests.kubernetes.knative_autoscaler.test_reconciler import running, until
from tests.kubernetes.knative_batching.conftest import ENV, Pods
from tests.kubernetes.knative_batching.test_serving_revisions import BATCHES, call, ingress, largest, serving
from tests.kubernetes.replicas.bodies import MODEL, put_model

pytestmark = pytest.mark.torch


async def test_a_revisions_batches_are_as_large_as_its_models_profile_has_them_in_time(
    knative_kinds: Cluster, knative: PlayedKnative, pods: Pods, tmp_path: Path
) -> None:
    folder = tmp_path / "models"
    sample_s = await asyncio.to_thread(put_model, folder)
    models = ServedModels(DirectoryRepository(folder), folder, folder / "profiles")
    # Two and a half times what a sample takes: two are in time, and a third is not.
    asked = {
        **BATCHES,
        "autoscaling.knative.dev/min-scale": "1",
        "gnomon/model": f"{MODEL}@1",
        "gnomon/slo-ms": str(round(2500 * sample_s)),
        "gnomon/deadline-ms": "60000",
    }
    async with running(knative_kinds, knative), serving(knative_kinds, knative, models=models) as gateway:
        knative.revision("f-00001", asked, env=ENV)
        await until(lambda: largest(gateway, knative) == {2}, "batches of two")
        async with ingress(gateway, knative, "f-00001") as user:
            assert await call(user, b"x") == (200, b"x")
        # Without the model's name nothing is foretold of it.
        knative.revision("g-00001", {**BATCHES, "autoscaling.knative.dev/min-scale": "1"}, env=ENV)
        name = f"g-00001.{knative.namespace}"
        await until(
            lambda: (found := gateway.manager.directory.lookup(name)) and set(found.largest_batches().values()) == {8}, "of eight"
        )
        assert pods.batches == [1]


async def test_a_model_that_is_measured_while_its_revision_serves_bounds_batches_from_then_on(
    knative_kinds: Cluster, knative: PlayedKnative, pods: Pods, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "REREAD_S", 0.2)
    folder, later = tmp_path / "models", tmp_path / "later"
    sample_s = await asyncio.to_thread(put_model, folder)
    (folder / "profiles").rename(later)
    models = ServedModels(DirectoryRepository(folder), folder, folder / "profiles")
    asked = {
        **BATCHES,
        "autoscaling.knative.dev/min-scale": "1",
        "gnomon/model": f"{MODEL}@1",
        "gnomon/slo-ms": str(round(2500 * sample_s)),
        "gnomon/deadline-ms": "60000",
    }
    async with running(knative_kinds, knative), serving(knative_kinds, knative, models=models) as gateway:
        knative.revision("f-00001", asked, env=ENV)
        await until(lambda: largest(gateway, knative) == {8}, "batches of eight")
        async with ingress(gateway, knative, "f-00001") as user:
            assert await call(user, b"x") == (200, b"x")
        later.rename(folder / "profiles")
        await until(lambda: largest(gateway, knative) == {2}, "batches of two")
        assert pods.batches == [1]
