"""Where a model repository may be."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnomon_core.errors import GnomonError
from gnomon_profiler.places import open_repository
from gnomon_profiler.repository import DirectoryRepository


@pytest.mark.parametrize("address", ["s3://", "s3:///models", "gs://bucket/models", "https://host/models"])
def test_an_address_that_leads_nowhere_is_refused(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another scheme was a folder of that name, which had no models."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(GnomonError, match="is not a model repository") as caught:
        open_repository(address)
    assert (caught.value.status, caught.value.code) == (400, "invalid_repository")
    assert not list(tmp_path.iterdir())


def test_a_folder_is_made_where_there_is_none(tmp_path: Path) -> None:
    assert isinstance(open_repository(str(tmp_path / "models")), DirectoryRepository)
