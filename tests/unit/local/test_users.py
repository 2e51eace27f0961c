from pathlib import Path

import pytest

from gnomon_platforms.local import recipes as users
from gnomon_platforms.local.recipes import Users
from tests.refusals import refused


def test_each_function_has_its_own_user_also_after_a_restart(tmp_path: Path) -> None:
    first = Users(tmp_path)
    ids = [first.uid(name) for name in ("a.x", "b.x", "a.y")]
    assert len(set(ids)) == 3
    assert min(ids) >= users.FIRST_UID
    again = Users(tmp_path)
    assert [again.uid(name) for name in ("a.x", "b.x", "a.y")] == ids
    assert again.uid("new.x") not in ids


def test_when_no_id_is_left_nobody_gets_somebody_elses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "LAST_UID", users.FIRST_UID)
    known = Users(tmp_path)
    known.uid("a")
    with pytest.raises(RuntimeError, match="are taken"):
        known.uid("b")
    assert known.uid("a") == users.FIRST_UID


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        '{"a": 0}',
        '{"a": true}',
        '{"a": "200000"}',
        '{"a": 300000}',
        '{"a": 200000, "b": 200000}',
        "\0",
        "\ud800",
    ],
)
def test_a_file_that_cannot_be_believed_is_named_and_nothing_begins_with_it(tmp_path: Path, content: str) -> None:
    """Root's id among them, or one for two functions, would be worse than none."""
    file = tmp_path / "users.json"
    file.write_bytes(content.encode("utf-8", "surrogatepass"))
    with refused(code="users_unreadable", match=r"users\.json cannot be read"):
        Users(tmp_path)
    assert file.exists()
