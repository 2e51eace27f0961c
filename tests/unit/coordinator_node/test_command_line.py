"""A command line that cannot be followed is told in a line."""

from pathlib import Path

import pytest

from gnomon_coordinator.node.__main__ import main, settings_from


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("", "set NODE_NAME"),
        ("--node n --port 70000", "70000 is no port"),
        ("--node n --pair-port -1", "-1 is no port"),
        ("--node n --port http", "invalid"),
        ("--node n --token-file {}/nowhere", "No such file"),
        ("--node n --token-file {}/bytes", "can't decode"),
        ("--node n --token-file {}/empty", "is empty"),
        ("--node n --tls-certificate {}/nowhere --tls-key {}/nowhere", "No such file"),
    ],
)
def test_invalid_options_are_explained(
    options: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NODE_NAME", raising=False)
    (tmp_path / "bytes").write_bytes(b"\xff")
    (tmp_path / "empty").write_text(" \n")
    with pytest.raises(SystemExit) as ended:
        settings_from(options.replace("{}", str(tmp_path)).split())
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("host", "says"), [("no-such-host.invalid", "Without a token nobody"), ("203.0.113.1", "Without a token nobody")]
)
def test_agent_refuses_a_public_address_without_a_token(
    host: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name may be anybody's address."""
    assert main(["--node", "n", "--kubelet", str(tmp_path), "--pool", str(tmp_path / "pool.sock"), "--host", host]) == 2
    assert says in capsys.readouterr().err
