"""Which content an image stands for, on disk."""

from pathlib import Path

import pytest

from gnomon_platforms.local.builder.builder import ImageIndex
from tests.refusals import refused


def test_image_index_survives_a_restart(tmp_path: Path) -> None:
    ImageIndex(tmp_path / "images.json").put("a:1", "0" * 64)
    assert ImageIndex(tmp_path / "images.json").get("a:1") == "0" * 64


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"images": []}', b'{"images": {"a": 1}}', b"\xff"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "images.json").write_bytes(content)
    with refused(code="images_unreadable", match=r"images\.json cannot be read"):
        ImageIndex(tmp_path / "images.json")
