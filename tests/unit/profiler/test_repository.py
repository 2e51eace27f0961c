"""Names and places of models."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gnomon_profiler.names import in_catalog, meant, not_in_catalog
from gnomon_profiler.places import open_repository
from gnomon_profiler.repository import DirectoryRepository
from tests.refusals import refused


@pytest.mark.parametrize("name", ["resnet50", "vit_b_16", "ssd300_vgg16"])
def test_an_architecture_of_torchvision_is_told_by_its_whole_name(name: str) -> None:
    error = not_in_catalog(name)
    assert (error.status, error.code) == (404, "model_not_found")
    assert f"`gnomon models add torchvision:{name}`" in error.hint
    assert in_catalog(f"torchvision:{name}")


@pytest.mark.parametrize(
    "name", ["resnet", "resnet51", "Resnet50", "_resnet", "", "a(b", "x" * 1000, "list_models\n", "resnet:50"]
)
def test_nothing_is_guessed_of_other_names(name: str) -> None:
    hint = not_in_catalog(name).hint
    assert "gnomon models add" not in hint
    assert "efficientnet-lite0" in hint


@pytest.mark.parametrize(
    ("name", "source", "whole"),
    [
        ("mine", "resnet50", "torchvision:resnet50"),
        ("resnet50", "torchvision", "torchvision:resnet50"),
        ("torchvision:resnet50", "torchvision", "torchvision:resnet50"),
        ("yolov8x", "ultralytics", "ultralytics:yolov8x"),
        ("mine", "efficientnet-lite0", "efficientnet-lite0"),
        ("mine", "torchvision:resnet50", "torchvision:resnet50"),
        ("resnet50", "network.py:make", "network.py:make"),
        ("resnet50", "resnet51", "resnet51"),
    ],
)
def test_a_source_may_be_short_where_it_has_one_meaning(name: str, source: str, whole: str) -> None:
    assert meant(name, source) == whole


@pytest.mark.parametrize("address", ["s3://", "s3:///models", "gs://bucket/models", "https://host/models"])
def test_an_address_that_leads_nowhere_is_refused(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another scheme was a folder of that name, which had no models."""
    monkeypatch.chdir(tmp_path)
    with refused(400, "invalid_repository", match="is not a model repository"):
        open_repository(address)
    assert not list(tmp_path.iterdir())


def test_a_folder_is_made_where_there_is_none(tmp_path: Path) -> None:
    assert isinstance(open_repository(str(tmp_path / "models")), DirectoryRepository)


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
    with refused(404):
        repository.get("resnet50@1")
    assert list(unwritable.iterdir()) == []
