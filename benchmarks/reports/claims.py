"""Claims: what a paper says, what was found here, and whether that is the same.

A report's claims as a list in Markdown, for a document to quote: written, read, and brought up to date.

Some claims rest on what other benchmarks publish. When those are run again, the list is renewed; what the report has measured
itself stays as it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

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


HEADS = ("| where | the paper | here | verdict |", "| --- | --- | --- | --- |")


def listed(title: str, facts: Mapping[str, str], claims: Sequence[Claim]) -> str:
    """The list: its title, how many claims have each verdict, the facts, and a row for each claim."""
    said = "; ".join(f"{name}: {value}" for name, value in facts.items())
    summary = f"{title}: {len(claims)} claims, {counted(claims)}. {said}."
    return "\n".join((f"# {title}", "", summary, "", *HEADS, *(_row(claim) for claim in claims))) + "\n"


def read(text: str) -> tuple[str, dict[str, str], list[Claim]]:
    """The title, the facts and the claims of a list.

    Raises:
        ValueError: a row is not one of four cells, or its verdict is not known.

    """
    title, _, summary, _, _, _, *rows = text.splitlines()
    said = summary.partition(". ")[2].removesuffix(".")
    facts = dict(fact.split(": ", 1) for fact in said.split("; "))
    return title.removeprefix("# "), facts, [_claim(row) for row in rows]


def renewed(text: str, claims: Iterable[Claim], facts: Mapping[str, str]) -> str:
    """The list with these claims and facts in the places of its own.

    Raises:
        ValueError: a claim that the list does not have: the report has to be made again.

    """
    title, before, old = read(text)
    new = {(claim.where, claim.says): claim for claim in claims}
    if unknown := new.keys() - {(claim.where, claim.says) for claim in old}:
        raise ValueError(f"the list has no such claim: {sorted(unknown)}")
    return listed(title, {**before, **facts}, [new.get((claim.where, claim.says), claim) for claim in old])


def _row(claim: Claim) -> str:
    verdict = f"{claim.verdict}: {claim.why}" if claim.why else claim.verdict
    return f"| {claim.where} | {claim.says} | {claim.found} | {verdict} |"


def _claim(row: str) -> Claim:
    cells = row.removeprefix("| ").removesuffix(" |").split(" | ")
    if len(cells) != 4:
        raise ValueError(f"no row of four cells: {row[:200]!r}")
    where, says, found, judged = cells
    verdict, _, why = judged.partition(": ")
    return Claim(where, says, found, cast("Verdict", verdict), why)
