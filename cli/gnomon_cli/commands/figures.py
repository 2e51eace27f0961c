"""`gnomon models figures`: what AsyFunc's figures say of models, from the profiles that were measured."""

from __future__ import annotations

from pathlib import Path

import click

from gnomon_cli.command import Command
from gnomon_cli.errors import CommandFailed
from gnomon_cli.output import print_table
from gnomon_profiler.figures.files import short_name, write_tables
from gnomon_profiler.figures.plots import draw
from gnomon_profiler.figures.tables import correlation, drawable
from gnomon_profiler.measuring.store import read_profile


@click.command(
    cls=Command,
    examples="""
    gnomon models figures profiles/*.json --output figures
    gnomon models figures profiles/resnet50.json --output figures --cores 2 --tables-only
    """,
)
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--output", required=True, type=click.Path(file_okay=False, path_type=Path), help="Folder for CSV and PNG files.")
@click.option("--cores", type=click.IntRange(min=1), default=1, help="Cores that latencies are of; default 1.")
@click.option("--tables-only", is_flag=True, help="CSV files alone; pictures need matplotlib.")
def figures(*, files: tuple[Path, ...], output: Path, cores: int, tables_only: bool) -> None:
    """Write the figures of some profiles: block by block what a larger batch costs, what loading costs, what crosses."""
    profiles = []
    for file in files:
        try:
            profiles.append(read_profile(file))
        except ValueError as error:
            raise CommandFailed(f"{file} is no profile: {error}.") from None
    if any(cores not in profile.whole.seconds for profile in profiles):
        raise CommandFailed(f"Not all of these profiles were measured on {cores} cores.", "Choose other --cores.")
    if not all(drawable(profile, cores) for profile in profiles):
        raise CommandFailed("Not all of these profiles were measured in batches of 2 and 4.", "Profile them with --batches 1-8.")
    written = write_tables(profiles, output, cores)
    if not tables_only:
        written += draw(profiles, output, cores)
    found = [(short_name(profile), correlation(profile, cores)) for profile in profiles]
    rows = [(name, one.blocks, f"{one.pearson:.2f}", f"{one.spearman:.2f}") for name, one in found]
    print_table(("MODEL", "BLOCKS", "PEARSON", "SPEARMAN"), rows)
    click.echo(f"\n{len(written)} files in {output}")
