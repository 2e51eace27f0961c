"""`gnomon lambda-profile`: how long batches of a model take on AWS Lambda, by memory size and batch size.

It says what it will cost and asks before it spends anything. Finished cells are kept, and the same command goes on from there.
"""

from __future__ import annotations

import asyncio
from itertools import product
from pathlib import Path
from typing import Any

import click

from gnomon_cli.command import Command
from gnomon_cli.commands.models import Numbers
from gnomon_cli.commands.serve_options import lambda_options, read_lambda_options
from gnomon_cli.model_repository import folder_options, model_folder, model_repository
from gnomon_cli.options import json_option
from gnomon_cli.output import note, print_json, print_table
from gnomon_core.lambda_pricing import MB_PER_CORE
from gnomon_profiler.measuring.store import FOLDER as PROFILES
from gnomon_profiler.repository import share_profile

MEMORY = "1024,1769,3538,5307,8845"
BATCHES = "1,2,4,8,16"
REPEATS = 10
SAMPLE_MS = 100.0
STEP_MB = 64


@click.command(
    cls=Command,
    examples="""
    gnomon lambda-profile efficientnet-lite0 --lambda-role ARN --lambda-bucket NAME --lambda-image URI
    gnomon lambda-profile torchvision:resnet50@1 --memory 1769,3538 --batches 1-8 --yes
    gnomon lambda-profile torchvision:resnet50@1 --memory 1024,3008 --batches 1,20 --grid
    """,
)
@click.argument("name")
@folder_options
@lambda_options
@click.option("--memory", type=Numbers(), default=MEMORY, metavar="LIST", help=f"Memory sizes in MB; default {MEMORY}.")
@click.option("--batches", type=Numbers(), default=BATCHES, metavar="LIST", help=f"Default {BATCHES}.")
@click.option(
    "--grid", is_flag=True, help="Only 3 % of all batches up to the largest at every 64 MB, for `gnomon plan` to model the rest."
)
@click.option("--repeats", type=click.IntRange(min=2), default=REPEATS, help=f"Invokes of each; default {REPEATS}.")
@click.option(
    "--sample-ms",
    type=click.FloatRange(min=0.01),
    default=SAMPLE_MS,
    help=f"What one sample takes on one core, for the estimate of the cost; default {SAMPLE_MS:g}.",
)
@click.option("--yes", is_flag=True, help="Do not ask before spending.")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    default=None,
    help="File to write the measurements to.",
)
@json_option
def lambda_profile(
    *,
    name: str,
    folder: str,
    state: str,
    memory: tuple[int, ...],
    batches: tuple[int, ...],
    grid: bool,
    repeats: int,
    sample_ms: float,
    yes: bool,
    output: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure a model on AWS Lambda, by memory size and batch.

    The function that it deploys is removed when it ends.
    """
    chosen = grid_of(memory, batches) if grid else tuple(product(sorted(set(memory)), sorted(set(batches))))
    from gnomon_server.platforms import require  # noqa: PLC0415 - a platform takes a while to import

    require("lambda")
    from gnomon_cli.measure_lambda import Profiling  # noqa: PLC0415 - as above
    from gnomon_platforms.aws_lambda.client import Clients  # noqa: PLC0415 - as above
    from gnomon_platforms.aws_lambda.profiling import MeasurementPlan, Table, estimate, path_of  # noqa: PLC0415 - as above

    aws = read_lambda_options(**options)
    repository = model_repository(folder, state)
    entry = repository.get(name)
    model, region = f"{entry.name}@{entry.version}", Clients(1).region
    plan = MeasurementPlan(chosen, repeats, sample_ms / 1000)
    path = output or path_of(model_folder(folder, state) / PROFILES, model, region)
    table = Table.open(path, {"model": model, "program": entry.sha256["program.json"], "region": region, "image": aws.image})
    missing = [cell for cell in plan.cells if cell not in table.cells]
    cost = estimate(plan, missing)
    note(f"{model} in {region}: {len(missing)} of {len(plan.cells)} cells to measure, {len(missing) * repeats} Invokes.")
    if missing:
        note(f"Expected cost: ${cost:.4f}, if a sample takes {sample_ms:g} ms on one core. It stops at twice that.")
        if not yes:
            click.confirm("Go on?", abort=True, err=True)
        try:
            asyncio.run(Profiling(aws, repository, entry, plan, table, agreed=cost, note=note).run())
        except KeyboardInterrupt:
            note("\nInterrupted. What was measured is kept; the same command goes on from there.")
            raise
    if output is None:
        share_profile(repository, model, path)
    if as_json:
        print_json(table.to_json())
        return
    sizes, steps = (sorted(set(those)) for those in zip(*plan.cells, strict=True))
    rows = [(memory_mb, *(_cell(table.cells.get((memory_mb, batch))) for batch in steps)) for memory_mb in sizes]
    print_table(("MB", *(f"b={batch} ms" for batch in steps)), rows)
    click.echo(f"\n${table.cost:.5f} spent. Stored in {path}")


def grid_of(memory: tuple[int, ...], batches: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """The memory sizes with batches that hold a model of all between the given ones.

    Raises:
        GnomonError: 400 `too_few_cells`: 3 % of them are too few for a model.

    """
    from gnomon_planner.service_time import cells_to_measure  # noqa: PLC0415 - numpy takes longer to import than help may take

    sizes = range(min(memory), max(memory) + 1, STEP_MB)
    cells = cells_to_measure(sizes, range(min(batches), max(batches) + 1), core_size=MB_PER_CORE)
    return tuple((int(size), batch) for size, batch in cells)


def _cell(cell: Any) -> str:
    return "-" if cell is None else f"{1000 * cell.seconds:.1f}"
