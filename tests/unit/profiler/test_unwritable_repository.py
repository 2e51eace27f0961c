"""A repository that may only be read, as a volume of a pod is: an empty one has no models, and is no error."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gnomon_core.errors import GnomonError
from gnomon_profiler.repository import DirectoryRepository

NOBODY = 65534


@pytest.fixture
def unwritable() -> Iterator[Path]:
    """An empty folder in which this process may make nothing; root is somebody else meanwhile."""
    folder = Path(tempfile.mkdtemp(prefix="gnomon-"))
    folder.chmod(0o555)
    if is_root := os.geteuid() == 0:
        os.seteuid(NOBODY)
    yield folder
    if is_root:
        os.seteuid(0)
    folder.chmod(0o700)
    folder.rmdir()


def test_an_empty_volume_has_no_models(unwritable: Path) -> None:
    repository = DirectoryRepository(unwritable)
    assert list(repository.list()) == []
    with pytest.raises(GnomonError) as missing:
        repository.get("resnet50@1")
    assert missing.value.status == 404
    assert list(unwritable.iterdir()) == []
