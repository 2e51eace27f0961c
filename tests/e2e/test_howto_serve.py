"""docs/howto/serve-your-own-model.md, followed from top to bottom in an empty folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.conftest import DEFAULT_URL, ROOT, blocks, shell

ELSEWHERE_URL = "http://server:8080"
HOWTO = (ROOT / "docs/howto/serve-your-own-model.md").read_text()
# Blocks that carry no name of their own, by the sentence that names them.
UNNAMED = {"json": "reviews/weights.json", "text": "reviews/requirements.txt"}


def write(folder: Path, language: str, text: str, url: str) -> None:
    """Put a block where the document says: its first comment is its name."""
    first = text.splitlines()[0]
    name = first.removeprefix("# ") if first.startswith("# ") else UNNAMED[language]
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text.replace(DEFAULT_URL, url))


@pytest.mark.torch
@pytest.mark.timeout(600)
def test_both_ways_work_as_written(tmp_path: Path, environment: dict[str, str], url: str) -> None:
    for shipped in ("template", "functions"):
        (tmp_path / shipped).symlink_to(ROOT / shipped)
    said = ""
    known = {**environment, "OPENFAAS_URL": url, "PATH": f"{ROOT / '.venv/bin'}:{environment['PATH']}"}
    for language, text in blocks(HOWTO):
        if language != "sh":
            write(tmp_path, language, text, url)
        elif "make templates" not in text:
            # The server elsewhere is this one too: the same content again is no error.
            result = shell(text.replace(DEFAULT_URL, url).replace(ELSEWHERE_URL, url), known, tmp_path)
            assert result.returncode == 0, f"{text}\n{result.stdout}{result.stderr}"
            said += f"{result.stdout}\n"
    answers = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    scores = [answer["outputs"][0]["data"] for answer in answers if "outputs" in answer]
    assert [len(score) for score in scores] == [3, 3], "the captured module gives three scores"
    assert scores[0] == pytest.approx(scores[1]), "by one command and step by step it is the same model"
    assert [answer["good"] > 0.5 for answer in answers if "good" in answer] == [True], "a great film is a good one"
