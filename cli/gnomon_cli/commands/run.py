"""`gnomon run`: the whole platform with something to see. `make run` calls it."""

from __future__ import annotations

from typing import Any

import click

from gnomon_cli.command import Command
from gnomon_cli.commands.serve import read_options, serve_options


@click.command(
    cls=Command,
    examples="""
    gnomon run
    gnomon run --once
    gnomon run -f my-stack.yml --port 9000
    """,
)
@click.option("-f", "--yaml", "stack_file", default="stack.yml", metavar="FILE", help="Stack file to deploy; default stack.yml.")
@click.option("--once", is_flag=True, help="End after the answer.")
@serve_options
def run(*, stack_file: str, once: bool, **options: Any) -> None:
    """Serve, deploy a stack file and classify a photograph."""
    from gnomon_cli.run import run as demonstrate  # noqa: PLC0415 - the gateway's libraries take a second to import

    demonstrate(read_options(**options), stack_file, once=once)
