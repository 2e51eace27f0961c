"""Claims: what a paper says, what was found here, and whether that is the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["reproduced", "not reproduced", "not comparable", "not measured"]
VERDICTS: tuple[Verdict, ...] = ("reproduced", "not reproduced", "not comparable", "not measured")


@dataclass(frozen=True, slots=True)
class Claim:
    """`where` in the paper, what it `says`, what was `found`, the verdict, and `why`, unless it is simply reproduced.

    Raises:
        ValueError: no reason for what is not reproduced.

    """

    where: str
    says: str
    found: str
    verdict: Verdict
    why: str = ""

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS or (self.verdict != "reproduced" and not self.why):
            raise ValueError(f"{self.where}: a verdict that is not known, or without a reason")


def judged(where: str, says: str, found: str, *, holds: bool, why: str) -> Claim:
    """Reproduced if it holds; else not, and why."""
    return Claim(where, says, found, "reproduced" if holds else "not reproduced", "" if holds else why)


def unmeasured(where: str, says: str, command: str) -> Claim:
    """A claim that waits for a benchmark to be run."""
    return Claim(where, says, "not measured yet", "not measured", f"run: {command}")


def counted(claims: Iterable[Claim]) -> str:
    """How many claims have each verdict."""
    found = Counter(claim.verdict for claim in claims)
    return ", ".join(f"{found[verdict]} {verdict}" for verdict in VERDICTS if found[verdict])
