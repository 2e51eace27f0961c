"""Fixtures for Bodies in pods: a cluster with our images, and a folder of models on its node.

`make images NAMES=gnomon-body` builds the image, in minutes and gigabytes; where it was not built from the sources as they are,
or the cluster is another than ours and nothing names its images, these tests are skipped with that reason.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.kubernetes.pods import Ground, on
from benchmarks.shadow.models import StoredModel
from gnomon_profiler.add import ensure_model
from gnomon_profiler.repository import DirectoryRepository
from tests.cluster.client import Cluster
from tests.cluster.phases import CannotBeHad

MODEL = "efficientnet-lite0"


@pytest.fixture(scope="session")
def models() -> Iterator[Path]:
    """A repository with a pretrained network, which pods of any user can read."""
    folder = Path(tempfile.mkdtemp(prefix="gnomon-models-"))
    folder.chmod(0o755)
    ensure_model(DirectoryRepository(folder), MODEL, progress=lambda _: None)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def network(models: Path) -> StoredModel:
    """The network in it."""
    entry = DirectoryRepository(models).get(MODEL)
    return StoredModel(entry.program.parent, entry)


@contextlib.contextmanager
def _on(cluster: Cluster, models: Path, *, shadows: bool) -> Iterator[Ground]:
    with contextlib.ExitStack() as stack:
        try:
            ground = stack.enter_context(on(cluster, models, shadows=shadows))
        except CannotBeHad as reason:
            pytest.skip(str(reason))
        yield ground


@pytest.fixture(scope="module")
def ground(cluster: Cluster, models: Path) -> Iterator[Ground]:
    """A namespace whose Bodies have the coordinator of their node."""
    with _on(cluster, models, shadows=True) as found:
        yield found


@pytest.fixture
def bare_ground(cluster: Cluster, models: Path) -> Iterator[Ground]:
    """A ground on a cluster without coordinators, so that a small node has all of its cores for a Body."""
    with _on(cluster, models, shadows=False) as found:
        yield found
