"""Documents as their readers use them: their blocks, run in order, in one shell, against a gateway that serves."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEFAULT_URL = "http://127.0.0.1:8080"


def blocks(document: str) -> list[tuple[str, str]]:
    """The fenced blocks of a Markdown document, as language and text."""
    return re.findall(r"```(\w+)\n(.*?)```", document, re.DOTALL)


def shell(script: str, environment: dict[str, str], folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run a script as one shell; the first command that fails ends it."""
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    home = tmp_path_factory.mktemp("reader")
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
