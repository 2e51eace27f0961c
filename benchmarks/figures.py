"""Every measured figure with its goal, those not met first.

python -m benchmarks.figures
"""

from __future__ import annotations

import json
from typing import Any

from benchmarks.programs import RESULTS
from benchmarks.report import table


def main() -> None:
    documents = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))]
    if not documents:
        print("Nothing has been measured here yet: make bench")
        return
    print(table(documents))
    print(f"\n{counted(documents)}")
    for document in documents:
        print(f"{document['name']}: {document['measured_at']}, {document['machine']}")


def counted(documents: list[dict[str, Any]]) -> str:
    """The number of figures with a goal, and of those that meet it."""
    verdicts = [figure["met"] for document in documents for figure in document["figures"] if figure["met"]]
    said = [f"{verdicts.count(verdict)} {verdict}" for verdict in ("met", "not resolved", "missed") if verdict in verdicts]
    return f"{len(verdicts)} figures have a goal: {', '.join(said)}."


if __name__ == "__main__":
    main()
