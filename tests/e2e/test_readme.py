"""The README's commands, run as a reader would run them."""

from __future__ import annotations

import re

import pytest

from tests.e2e.conftest import DEFAULT_URL, ROOT, blocks, shell

README = (ROOT / "README.md").read_text()
HOWTO = ROOT / "docs" / "howto"
# What the test cannot do inside itself: it is what `make test` runs, and `make run` has a test of its own below.
NOT_HERE = ("make run", "make test")


@pytest.mark.torch
@pytest.mark.timeout(600)
def test_every_command_works_in_order(environment: dict[str, str], url: str) -> None:
    script = "\n".join(text for language, text in blocks(README) if language == "sh")
    lines = [line for line in script.splitlines() if not line.startswith(NOT_HERE)]
    assert any("gnomon deploy" in line for line in lines), "the README shows no deployment any more"
    result = shell("\n".join(lines).replace(DEFAULT_URL, url), {**environment, "OPENFAAS_URL": url})
    assert result.returncode == 0, result.stdout + result.stderr
    assert "espresso" in result.stdout, "the photograph was not recognised"
    assert "Hello, Ada!" in result.stdout, "the handler did not greet"


@pytest.mark.torch
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", ["choose-a-policy.md", "carry-a-burst.md", "plan-a-buffer.md"])
def test_every_command_of_the_policy_pages_works(environment: dict[str, str], url: str, page: str) -> None:
    script = "\n".join(text for language, text in blocks((HOWTO / page).read_text(encoding="utf-8")) if language == "sh")
    assert "gnomon " in script, f"{page} shows no command any more"
    result = shell(script.replace(DEFAULT_URL, url), {**environment, "OPENFAAS_URL": url})
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.torch
@pytest.mark.timeout(600)
def test_make_run_once_classifies_the_photograph(environment: dict[str, str]) -> None:
    result = shell("make run ONCE=1 PORT=0", {**environment, "GNOMON_STATE": f"{environment['HOME']}/run"})
    assert result.returncode == 0, result.stdout + result.stderr
    assert "espresso" in result.stdout
    assert "curl --data-binary" in result.stdout


def test_a_port_in_use_gets_one_clear_line(environment: dict[str, str], url: str) -> None:
    port = url.rpartition(":")[2]
    result = shell(f".venv/bin/gnomon serve --port {port} --state {environment['HOME']}/other", environment)
    assert result.returncode == 1
    assert re.fullmatch(rf"Error: Port {port} on 127\.0\.0\.1 is in use\..*\n", result.stderr)
