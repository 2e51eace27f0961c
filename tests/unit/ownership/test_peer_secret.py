"""What replicas show each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnomon_core.errors import GnomonError
from gnomon_gateway.replicas.peers import PeerSecret, read_peer_secret

GOOD = "c2VjcmV0LW9mLXJlcGxpY2Fz"


def test_only_the_secret_itself_is_let_in() -> None:
    secret = PeerSecret(GOOD)
    assert secret.allows(GOOD.encode())
    for shown in (None, b"", GOOD.encode()[:-1], GOOD.encode() + b"x", GOOD.upper().encode(), b"\xff"):
        assert not secret.allows(shown)


def test_it_is_read_from_a_file_without_its_line_break(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"{GOOD}\n")
    assert read_peer_secret(tmp_path / "secret").allows(GOOD.encode())


@pytest.mark.parametrize("text", ["", "short", "sixteen letters\r\nx-injected: 1", "sechzehn Zeichen lang, ähnlich"])
def test_what_would_be_guessed_or_break_a_header_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "secret").write_text(text, encoding="utf-8")
    with pytest.raises(GnomonError) as caught:
        read_peer_secret(tmp_path / "secret")
    assert caught.value.code == "peer_secret_unfit"
    assert not text or text not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(GnomonError) as caught:
        read_peer_secret(tmp_path / "nowhere")
    assert caught.value.code == "peer_secret_missing"
    assert "nowhere" in caught.value.message


def test_it_does_not_show_where_objects_are_printed() -> None:
    assert GOOD not in repr(PeerSecret(GOOD))
