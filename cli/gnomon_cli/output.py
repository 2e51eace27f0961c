"""Output of commands: tables for people, JSON for programs, and JSON as Go's encoding/json writes it.

Requests equal faas-cli's byte for byte. Go's encoding differs from Python's compact form in two ways: the keys of a map are
sorted, while a struct keeps its order (the caller's business), and `<`, `>`, `&` and the two line separators are escaped.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click


def print_json(document: Any) -> None:
    """A document, indented."""
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def print_line(document: Any) -> None:
    """A document on one line, for streams."""
    click.echo(json.dumps(document, ensure_ascii=False))


def print_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Columns as wide as their widest text, two spaces apart."""
    texts = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[column]) for row in texts) for column in range(len(header))]
    for row in texts:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def note(text: str) -> None:
    """Print progress to standard error: programs may read standard output."""
    click.echo(text, err=True)


def read_standard_input() -> bytes:
    """All of standard input. On a terminal, a note says that input is awaited."""
    if sys.stdin.isatty():
        note("Reading from standard input; end it with Ctrl-D.")
    return sys.stdin.buffer.read()


_ESCAPED = str.maketrans({character: f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"})


def go_json(document: Any) -> bytes:
    """The document on one line. None of the escaped characters is part of JSON's own syntax, so they only occur in texts."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return text.translate(_ESCAPED).encode("utf-8", "replace")


def sorted_map(texts: Mapping[str, str]) -> dict[str, str]:
    """A Go map: written in the order of its keys."""
    return dict(sorted(texts.items()))
