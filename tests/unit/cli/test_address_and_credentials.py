"""Which gateway is meant, and who we are there."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from gnomon_cli.credentials import config_file, find, forget, remember
from gnomon_cli.errors import CommandFailed
from gnomon_cli.options import gateway_url

USUAL = "http://127.0.0.1:8080"


@pytest.mark.parametrize(
    ("flag", "stack", "variable", "url"),
    [
        ("", "", "", USUAL),
        ("https://Flag.example/", "http://stack", "http://variable", "https://flag.example"),
        ("", "http://stack:80", "http://variable", "http://stack:80"),
        ("", USUAL, "http://variable", "http://variable"),
        (USUAL, "http://stack", "http://variable", USUAL),
        ("host:9000", "", "", "http://host:9000"),
        ("httpd:9000", "", "", "http://httpd:9000"),
        ("ftp://host", "", "", "ftp://host"),
    ],
)
def test_the_gateways_address(flag: str, stack: str, variable: str, url: str) -> None:
    assert gateway_url(flag, stack, {"OPENFAAS_URL": variable}) == url


def test_logins_of_other_gateways_and_unknown_fields_are_kept(tmp_path: Path) -> None:
    environment = {"OPENFAAS_CONFIG": str(tmp_path)}
    path = config_file(environment)
    path.write_text("auths:\n- gateway: http://other\n  auth: oauth2\n  token: abc\n  options: [{name: a, value: b}]\n")
    remember("http://here", "ada", "pass:word", environment)
    assert find("http://here", "ignored", environment).authorization == "Basic " + base64.b64encode(b"ada:pass:word").decode()
    assert find("http://other", "", environment).authorization == "Bearer abc"
    assert find("http://other", "given", environment).authorization == "Bearer given"
    assert find("http://nobody", "", environment).authorization == ""
    assert forget("http://here", environment)
    assert not forget("http://here", environment)
    assert "options" in path.read_text()


def test_in_ci_the_file_lies_in_the_working_directory() -> None:
    assert config_file({"CI": "true"}) == Path(".openfaas/config.yml")
    assert config_file({"CI": "1", "OPENFAAS_CONFIG": "/x"}) == Path("/x/config.yml")


@pytest.mark.parametrize("text", ["a: [", "auths:\n- {gateway: http://here, auth: basic, token: '***'}"])
def test_a_broken_file_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yml").write_text(text)
    with pytest.raises(CommandFailed, match="og in again"):
        find("http://here", "", {"OPENFAAS_CONFIG": str(tmp_path)})
