"""The README's commands, run as a reader would run them: in order, in one shell, against a gateway that serves."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
DEFAULT_URL = "http://127.0.0.1:8080"
# What the test cannot do inside itself: it is what `make test` runs, and `make run` has a test of its own below.
NOT_HERE = ("make run", "make test")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def shell(script: str, environment: dict[str, str], limit_s: float = 300.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    home = tmp_path_factory.mktemp("readme")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OPENFAAS_") and name != "CI"}
    return {**kept, "HOME": str(home), "GNOMON_STATE": str(home / "state")}


@pytest.fixture(scope="module")
def url(environment: dict[str, str]) -> Iterator[str]:
    with subprocess.Popen(
        [ROOT / ".venv/bin/gnomon", "serve", "--port", "0"], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        found = re.search(r"http://\S+?:\d+", server.stdout.readline())
        assert found
        yield found[0]
        server.terminate()
        assert server.wait(60) == 0


@pytest.mark.torch
@pytest.mark.timeout(600)
def test_every_command_works_in_order(environment: dict[str, str], url: str) -> None:
    script = "\n".join(blocks("sh"))
    lines = [line for line in script.splitlines() if not line.startswith(NOT_HERE)]
    assert any("gnomon deploy" in line for line in lines), "the README shows no deployment any more"
    result = shell("\n".join(lines).replace(DEFAULT_URL, url), {**environment, "OPENFAAS_URL": url})
    assert result.returncode == 0, result.stdout + result.stderr
    assert "espresso" in result.stdout, "the photograph was not recognised"
    assert "Hello, Ada!" in result.stdout, "the handler did not greet"


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


def test_every_link_leads_somewhere() -> None:
    targets = re.findall(r"\]\((?!https?://)([^)#]+)", README)
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []
