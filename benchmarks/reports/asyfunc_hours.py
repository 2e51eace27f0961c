"""The simulated hours of AsyFunc's policy and its rivals, as tables below a document's own words.

`python -m benchmarks.asyfunc_cluster --hours` ▶ benchmarks/results/asyfunc_cluster.json ▶ a table a metric, a row a model
`python -m benchmarks.reports.asyfunc_hours FILE` writes them anew, from the line `<!-- tables -->` on.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent.parent / "results" / "asyfunc_cluster.json"
METRICS = {
    "SLO violations": "Requests later than the objective, or refused (%)",
    "memory": "Memory × time ÷ the hour (GB)",
    "CPU utility": "CPU utility (%): cores that compute ÷ cores held, over the hour",
}
SERIALS = ("2%", "5%", "10%")
USUAL = "5%"
_BESIDE = ("asyfunc", "k-lv", "od")
_KEY = re.compile(
    r"(?:\w+:)?(?P<model>[\w-]+)@1: (?P<mode>private|shared), (?P<serial>\d+%) serial, .*, 60 min: (?P<metric>[^:]+)$"
)
_OTHERS = re.compile(r"([a-z-]+(?: without \w+)?) ([\d.e-]+)(?:,|;)")
BELOW = "<!-- tables -->\n\n"


def rows(figures: Iterable[Mapping[str, Any]], serial: str = USUAL) -> dict[str, dict[str, dict[str, float]]]:
    """Metric ▶ model ▶ policy ▶ value, with private weights; what `asyfunc` has with shared ones is `asyfunc, shared`."""
    found: dict[str, dict[str, dict[str, float]]] = {metric: {} for metric in METRICS}
    for figure in figures:
        key = _KEY.search(figure["key"])
        if key is None or key["metric"] not in METRICS or key["serial"] != serial:
            continue
        row = found[key["metric"]].setdefault(key["model"], {})
        if key["mode"] == "shared":
            row["asyfunc, shared"] = figure["value"]
        else:
            row |= {"asyfunc": figure["value"]} | {name: float(value) for name, value in _OTHERS.findall(figure["detail"])}
    return found


def table(title: str, models: Mapping[str, Mapping[str, float]]) -> str:
    """One metric of every model as a Markdown table."""
    policies = list(dict.fromkeys(policy for row in models.values() for policy in row))
    lines = [f"**{title}**", "", f"| model | {' | '.join(policies)} |", "| --- " * (len(policies) + 1) + "|"]
    for model, row in sorted(models.items()):
        lines.append(f"| {model} | " + " | ".join(f"{row[policy]:.3g}" if policy in row else "–" for policy in policies) + " |")
    return "\n".join(lines)


def by_serial(figures: Sequence[Mapping[str, Any]], metric: str) -> dict[str, dict[str, float]]:
    """Model ▶ policy and serial fraction ▶ value, of the models for which more than the usual fraction was simulated."""
    by_fraction = {serial: rows(figures, serial)[metric] for serial in SERIALS}
    found: dict[str, dict[str, float]] = {}
    for policy in _BESIDE:
        for serial, models in by_fraction.items():
            for model, row in models.items():
                found.setdefault(model, {})[f"{policy}, {serial}"] = row[policy]
    return {model: row for model, row in found.items() if len(row) > len(_BESIDE)}


def tables() -> str:
    """All tables, with the simulations' settings."""
    figures = json.loads(RESULTS.read_text())["figures"]
    keys = [(_KEY.search(each["key"]), each["detail"]) for each in figures]
    loads = {
        key["model"]: detail.split("; ")[1]
        for key, detail in keys
        if key is not None and (key["metric"], key["serial"]) == ("memory", USUAL)
    }
    parts = [table(title, rows(figures)[metric]) for metric, title in METRICS.items()]
    for metric, title in METRICS.items():
        if models := by_serial(figures, metric):
            parts.append(table(f"{title.partition(':')[0]}, by the serial fraction beyond two cores", models))
    parts.append("**Load and profile of each**\n\n" + "\n".join(f"- {model}: {load}" for model, load in sorted(loads.items())))
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    file = Path(sys.argv[1])
    words, mark, _ = file.read_text().partition(BELOW)
    file.write_text(words + mark + tables())
