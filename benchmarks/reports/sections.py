"""Sections: one figure of a paper, or one group of its claims, as it was found here."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.reports.claims import Claim
from benchmarks.reports.pictures import Picture
from benchmarks.reports.tables import Table


@dataclass(frozen=True, slots=True)
class Section:
    """`name` is its place in the page; `text` says how it was measured, paragraph by paragraph."""

    name: str
    title: str
    text: tuple[str, ...]
    pictures: tuple[Picture, ...] = ()
    tables: tuple[Table, ...] = ()
    claims: tuple[Claim, ...] = ()
