"""What the tests came to by each class, side by side."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from deploy.test_cluster import records, suites
from deploy.test_cluster.serving_conformance.defaults import CLASSES, GNOMON, STOCK


@dataclass
class Comparison:
    """Results by class, then by test: `PACKAGE/TEST`, with the parts of tests as tests of their own."""

    by_class: dict[str, dict[str, suites.Result]] = field(default_factory=dict)

    def add(self, name: str, part: str, said: str) -> None:
        """Take what a package of tests has said."""
        results = self.by_class.setdefault(name, {})
        for depth in (0, 1):
            results |= {f"{part}/{one.name}": one for one in suites.results(said, depth=depth)}

    def names(self) -> list[str]:
        """Every test that some class was asked."""
        return sorted({name for results in self.by_class.values() for name in results})

    def outcome(self, class_name: str, name: str) -> str:
        """PASS, FAIL or SKIP; a dash where the test did not end."""
        found = self.by_class.get(class_name, {}).get(name)
        return found.outcome if found else "-"

    def passed(self, class_name: str = "") -> list[str]:
        """The tests that passed by this class, or by some class."""
        classes = [class_name] if class_name else list(self.by_class)
        return [name for name in self.names() if any(self.outcome(one, name) == "PASS" for one in classes)]

    def lost(self) -> list[str]:
        """What the stock class passes and ours does not; where one of the two was not run, what failed."""
        if {STOCK, GNOMON} <= self.by_class.keys():
            return [name for name in self.passed(STOCK) if self.outcome(GNOMON, name) != "PASS"]
        return [name for name in self.names() if any(self.outcome(one, name) == "FAIL" for one in self.by_class)]

    def lines(self) -> list[str]:
        """A line for each test, and the numbers."""
        lines = [
            "  ".join([*(f"{self.outcome(one, name):4} {self._seconds(one, name):6.1f} s" for one in self.by_class), name])
            for name in self.names()
        ]
        lines = ["  ".join(f"{one:13}" for one in self.by_class) + "  test", *lines]
        for one in self.by_class:
            outcomes = [self.outcome(one, name) for name in self.names()]
            lines.append(f"{one}: " + ", ".join(f"{outcomes.count(kind)} {kind}" for kind in ("PASS", "FAIL", "SKIP", "-")))
        return [*lines, *(f"passes by the stock class only: {name}" for name in self.lost() if len(self.by_class) > 1)]

    def _seconds(self, class_name: str, name: str) -> float:
        found = self.by_class.get(class_name, {}).get(name)
        return found.seconds if found else 0.0


def record(found: Comparison, *, parallel: int) -> dict[str, Any]:
    """The document that is kept."""
    return {
        **records.provenance("knative_serving_conformance"),
        "parallel": parallel,
        "classes": {name: CLASSES[name] for name in found.by_class},
        "passes_by_the_stock_class_only": found.lost(),
        "tests": {name: {one: found.outcome(one, name) for one in found.by_class} for name in found.names()},
    }
