"""Output of commands: tables for people, JSON for programs and for the gateway; failures as one line on stderr and an exit code.

The exit code is 0 for success, 1 for a failure (of the gateway, the network, the stack file), 2 for a command that was written
wrongly (click's own).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import click

EXIT_FAILURE = 1
EXIT_WRONG_COMMAND = 2


class CommandFailed(click.ClickException):
    """A failure, with a hint that says what to do."""

    exit_code = EXIT_FAILURE

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message} {hint}".strip())


class WrongCommand(CommandFailed):
    """A command line whose options contradict each other or are not valid."""

    exit_code = EXIT_WRONG_COMMAND


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


def compact_json(document: Any) -> bytes:
    """The body of a request: a document on one line."""
    # An argument of the command line that is not UTF-8 has lone surrogates (PEP 383), which UTF-8 cannot encode.
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
