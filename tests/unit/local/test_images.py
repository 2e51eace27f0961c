from pathlib import Path

import pytest

from gnomon_core.errors import GnomonError
from gnomon_platforms.images import ImageTable, bare_name


@pytest.mark.parametrize(
    ("image", "kind"),
    [
        ("functions/alpine", "process"),
        ("functions/alpine:latest", "process"),
        ("docker.io/functions/alpine:latest", "process"),
        ("docker.io/theaxer/redirector:latest", "redirect"),
        ("gnomon/body:0.1", "model"),
        ("gnomon/body-gpu", "model"),
        ("functions/alpine@sha256:" + "0" * 64, "process"),
    ],
)
def test_the_built_in_table_knows(image: str, kind: str) -> None:
    entry = ImageTable().find(image)
    assert entry is not None
    assert entry.kind == kind


@pytest.mark.parametrize("image", ["functions/alpine2", "evil.example/functions/alpine", "localhost:5000/functions/alpine", "x"])
def test_it_takes_no_other_image_for_one_of_these(image: str) -> None:
    assert ImageTable().find(image) is None


def test_a_registry_with_a_port_keeps_it() -> None:
    assert bare_name("localhost:5000/a/b:1") == "localhost:5000/a/b"


def test_a_users_own_rows_come_first_and_may_set_variables(tmp_path: Path) -> None:
    file = tmp_path / "images.yml"
    file.write_text("images:\n  - match: functions/*\n    kind: process\n    environment: {fprocess: wc -c, exec_timeout: 5}\n")
    table = ImageTable(file)
    entry = table.find("functions/alpine")
    assert entry is not None
    assert entry.environment == {"fprocess": "wc -c", "exec_timeout": "5"}
    assert table.find("theaxer/redirector") is not None
    assert str(file) in table.unknown("x").hint


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("images: [{match: a}]", "one of process, redirect, model"),
        ("images: [{match: a, kind: docker}]", "one of process, redirect, model"),
        ("images: [{match: a, kind: process, port: 1}]", "unknown keys port"),
        ("images: [{kind: process}]", "needs a match"),
        ("- a", "cannot be read"),
        ("images: [", "cannot be read"),
    ],
)
def test_a_table_that_cannot_be_read_says_where_and_why(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "images.yml"
    file.write_text(text)
    with pytest.raises(GnomonError, match=complaint) as refused:
        ImageTable(file)
    assert str(file) in refused.value.message
