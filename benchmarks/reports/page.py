"""The page: one HTML file that needs nothing beside it, legible on light and on dark.

Sections: one figure of a paper, or one group of its claims, as it was found here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from benchmarks.reports.claims import VERDICTS, Claim
from benchmarks.reports.figures import Picture, Table


@dataclass(frozen=True, slots=True)
class Section:
    """`name` is its place in the page; `text` says how it was measured, paragraph by paragraph."""

    name: str
    title: str
    text: tuple[str, ...]
    pictures: tuple[Picture, ...] = ()
    tables: tuple[Table, ...] = ()
    claims: tuple[Claim, ...] = ()


STYLE = Path(__file__).parent / "page.css"


def html(title: str, about: Sequence[str], facts: Mapping[str, str], sections: Sequence[Section]) -> str:
    """The whole document."""
    claims = [claim for section in sections for claim in section.claims]
    contents = "".join(f"<li><a href='#{one.name}'>{escape(one.title)}</a>{_dots(one.claims)}</li>" for one in sections)
    known = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts.items())
    body = "".join(_section(one) for one in sections)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>
{STYLE.read_text(encoding="utf-8")}</style>
</head>
<body>
<header>
<h1>{escape(title)}</h1>
{_paragraphs(about)}
<ul class="counts">{_counts(claims)}</ul>
<dl>{known}</dl>
</header>
<nav aria-label="Contents"><ol>{contents}</ol></nav>
<main>
{body}
</main>
<footer><p>Every table is also a CSV and a JSON file beside this page; <a href="claims.csv">claims.csv</a> has all claims,
<a href="report.json">report.json</a> everything.</p></footer>
</body>
</html>
"""


def _section(section: Section) -> str:
    pictures = "".join(
        f"<figure>{one.inlined()}<figcaption>{escape(one.caption)} <a href='{one.name}.svg' "
        "download>SVG</a></figcaption></figure>"
        for one in section.pictures
    )
    claims = "".join(_claim(claim) for claim in section.claims)
    tables = "".join(
        f"<details{' open' if len(one.rows) <= 12 else ''}><summary>{escape(one.title)}: {len(one.rows)} "
        f"rows</summary>{one.to_html()}</details>"
        for one in section.tables
    )
    return (
        "<section "
        f"id='{section.name}'><h2>{escape(section.title)}</h2>{_paragraphs(section.text)}{pictures}{claims}{tables}</section>\n"
    )


def _claim(claim: Claim) -> str:
    why = f"<dt>Why</dt><dd>{escape(claim.why)}</dd>" if claim.why else ""
    return (
        f"<article class='claim {_kind(claim)}'><p class='verdict'>{escape(claim.verdict)}</p><p "
        f"class='where'>{escape(claim.where)}</p><dl><dt>The "
        f"paper</dt><dd>{escape(claim.says)}</dd><dt>Here</dt><dd>{escape(claim.found)}</dd>{why}</dl></article>"
    )


def _counts(claims: Sequence[Claim]) -> str:
    pairs = [(verdict, sum(claim.verdict == verdict for claim in claims)) for verdict in VERDICTS]
    return "".join(f"<li class='{verdict.replace(' ', '-')}'><b>{count}</b> {verdict}</li>" for verdict, count in pairs if count)


def _dots(claims: Iterable[Claim]) -> str:
    dots = "".join(f"<i class='{_kind(claim)}' title='{escape(claim.where)}: {claim.verdict}'></i>" for claim in claims)
    return f"<span class='dots'>{dots}</span>"


def _kind(claim: Claim) -> str:
    return claim.verdict.replace(" ", "-")


def _paragraphs(text: Sequence[str]) -> str:
    return "".join(f"<p>{escape(one)}</p>" for one in text)
