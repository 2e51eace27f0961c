"""What a long benchmark has measured so far, so that an interrupted run goes on where it was.

One line of JSON for each result, in `.cache/benchmarks`. A line counts only for the code that made it: the digest of every source
that decides the result stands in it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from benchmarks.pace import ROOT

FOLDER = ROOT / ".cache" / "benchmarks"


class Kept:
    """The results of one kind, by their keys; `sources` are folders and files, from the repository's root."""

    def __init__(self, name: str, sources: Sequence[str]) -> None:
        self.path = FOLDER / f"{name}.jsonl"
        self._code = _digest(sources)
        self._results: dict[str, Any] = {}
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
        for line in lines:
            document = json.loads(line) if line.endswith("}") else {}  # the last may be half written
            if document.get("code") == self._code:
                self._results[document["key"]] = document["result"]

    def get(self, key: str) -> Any:
        """What was kept under this key, None if nothing was."""
        return self._results.get(key)

    def keep(self, key: str, result: Any) -> None:
        """Write a result down at once."""
        self._results[key] = result
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"code": self._code, "key": key, "result": result}) + "\n")

    def forget(self) -> None:
        """Begin afresh."""
        self._results.clear()


def _digest(sources: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for source in sources:
        for path in sorted((ROOT / source).rglob("*.py")) or [ROOT / source]:
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
