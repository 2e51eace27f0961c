"""`gnomon models profile` and `profiles`: how fast a model is here, block by block, and what it takes to load it.

`profile` measures for minutes, says what it has found as it goes, and can be interrupted: the same command goes on. `profiles`
lists what was measured and shows one model's tables; cores beyond the measured ones are marked and follow from a serial fraction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from gnomon_cli.command import Command
from gnomon_cli.errors import CommandFailed
from gnomon_cli.model_folder import folder_options, model_repository, profile_store
from gnomon_cli.options import json_option
from gnomon_cli.output import note, print_json, print_table
from gnomon_core.interfaces import ModelEntry
from gnomon_core.profiles import ModelProfile, Points
from gnomon_profiler.measuring.assembly import ReadyTimes
from gnomon_profiler.measuring.cells import TRIES
from gnomon_profiler.measuring.profiling import MAX_BATCH, REPEATS, Wishes, parse_numbers, profile_model
from gnomon_profiler.measuring.store import read_profile, write_profile
from gnomon_profiler.places import share_profile

SHOWN_BEYOND = (4, 8, 16)
"""Cores that are shown extrapolated where they were not measured, up to AsyFunc's C_max."""
SERIAL_PERCENT = "2,5,10"


class Numbers(click.ParamType[tuple[int, ...]]):
    """`1,2,4-6`."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return parse_numbers(value)
        except ValueError:
            self.fail(f"{value!r} is not a list of numbers such as 1,2,4-6.", param, ctx)


@click.command(
    cls=Command,
    examples="""
    gnomon models profile efficientnet-lite0
    gnomon models profile torchvision:resnet50@1 --cores 1,2 --batches 1-8
    gnomon models profile my-model --output my-model.json
    gnomon models profile my-model --afresh
    """,
)
@click.argument("name")
@folder_options
@click.option("--cores", type=Numbers(), default=(), metavar="LIST", help="Such as 1,2,4; default: 1 to all of this machine's.")
@click.option("--batches", type=Numbers(), default=f"1-{MAX_BATCH}", metavar="LIST", help=f"Default 1-{MAX_BATCH}.")
@click.option(
    "--repeats", type=click.IntRange(min=3), default=REPEATS, help=f"Least number of runs of each batch; default {REPEATS}."
)
@click.option(
    "--tries", type=click.IntRange(min=1), default=TRIES, help=f"How often a noisy batch is measured at most; default {TRIES}."
)
@click.option("--afresh", is_flag=True, help="Measure again what its profile on this machine has, and leave out the rest of it.")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    default=None,
    help="Write the profile to this file as well.",
)
@json_option
def profile(
    *,
    name: str,
    folder: str,
    state: str,
    cores: tuple[int, ...],
    batches: tuple[int, ...],
    repeats: int,
    tries: int,
    afresh: bool,
    output: Path | None,
    as_json: bool,
) -> None:
    """Measure a model on this machine: latency of each block by cores and batch, loading, memory, hand-over.

    Let nothing else run meanwhile. What is finished is kept when this is interrupted, and the same command goes on from there.
    Other cores and batches are added to the profile that there is of the same model, machine and versions.
    """
    repository = model_repository(folder, state)
    entry = repository.get(name)
    wishes = Wishes(cores, batches, repeats, tries, afresh)

    def ready(one: ModelEntry) -> ReadyTimes:
        from gnomon_cli.starts import measure_starts  # noqa: PLC0415 - a platform takes a while to import

        note(f"{name}: starts on the local platform")
        return measure_starts(repository, one)

    try:
        measured, path = profile_model(entry, profile_store(folder, state), wishes, note, ready)
    except KeyboardInterrupt:
        note("\nInterrupted. What was measured is kept; the same command goes on from there.")
        raise
    if as_json:
        print_json(measured.to_json())
    else:
        _show(measured, _fractions(parse_numbers(SERIAL_PERCENT)))
        click.echo(f"\nStored in {path}")
    if output is not None:
        write_profile(output, measured)
    share_profile(repository, measured.model, path)


@click.command(
    cls=Command,
    examples="""
    gnomon models profiles
    gnomon models profiles torchvision:resnet50@1
    gnomon models profiles torchvision:resnet50@1 --serial 3
    gnomon models profiles --file profiles/resnet50.json
    """,
)
@click.argument("name", required=False, default="")
@folder_options
@click.option("--file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Show the profile in this file.")
@click.option(
    "--serial",
    type=Numbers(),
    default=SERIAL_PERCENT,
    metavar="PERCENT,…",
    help=f"Of which cores beyond the measured ones follow by Amdahl's law; default {SERIAL_PERCENT}.",
)
@json_option
def profiles(*, name: str, folder: str, state: str, file: Path | None, serial: tuple[int, ...], as_json: bool) -> None:
    """List the profiles, or show those of one model."""
    if file is not None:
        found = [(file, _read(file))]
    else:
        reference = _reference(name, folder, state) if name else None
        found = list(profile_store(folder, state).list(reference))
        if name and not found:
            raise CommandFailed(f"{reference} has no profile.", f"Measure it: gnomon models profile {name}")
    fractions = _fractions(serial)
    if as_json:
        print_json([one.to_json() | {"extrapolated": [_beyond(one, each) for each in fractions]} for _, one in found])
    elif name or file is not None:
        for path, one in found:
            click.echo(f"{one.model}  {path}")
            _show(one, fractions)
    else:
        _list(found)


def _reference(name: str, folder: str, state: str) -> str:
    entry = model_repository(folder, state).get(name)
    return f"{entry.name}@{entry.version}"


def _read(file: Path) -> ModelProfile:
    try:
        return read_profile(file)
    except ValueError as error:
        raise CommandFailed(f"{file} is no profile: {error}.") from None


def _list(found: Sequence[tuple[Path, ModelProfile]]) -> None:
    rows = [
        (
            one.model,
            path.stem,
            ",".join(map(str, sorted(one.whole.seconds))),
            len(one.blocks),
            f"{100 * max(one.spread.values(), default=0):.0f} %",
            one.provenance.get("date", ""),
        )
        for path, one in found
    ]
    print_table(("MODEL", "MACHINE", "CORES", "BLOCKS", "WORST SPREAD", "DATE"), rows)


def _show(one: ModelProfile, serial_fractions: tuple[float, ...]) -> None:
    """The whole model's latencies, its blocks at the smallest and largest batch, and the rest in a line each."""
    batches = sorted({batch for row in one.whole.seconds.values() for batch in row})
    print_table(("CORES", *(f"b={batch}" for batch in batches), "ms"), list(_latency_rows(one, batches, serial_fractions)))
    click.echo("")
    header = ("BLOCK", "MB", "GMAC", *(f"b={batch} ms" for batch in batches), "SPREAD", "LOAD ms")
    print_table(header, list(_block_rows(one, batches)))
    click.echo("")
    for mode, loading in one.loading.items():
        points = _points_said(one.evidence.loading.get(mode), loading.fixed_s, loading.seconds_per_byte)
        click.echo(f"load {mode}: {1000 * loading.fixed_s:.2f} ms + {1e9 * loading.seconds_per_byte:.3f} ms/MB{points}")
    click.echo(f"start: Body {1000 * one.body_start_s:.1f} ms, Shadow {1000 * one.shadow_start_s:.1f} ms, before loading")
    points = _points_said(one.evidence.transfer, one.transfer_fixed_s, one.transfer_seconds_per_byte)
    click.echo(
        f"hand-over: {1e6 * one.transfer_fixed_s:.0f} µs + {1e9 * one.transfer_seconds_per_byte:.3f} ms/MB, each way{points}"
    )
    if (network := one.network) is not None:
        price = f"{1e6 * network.fixed_s:.0f} µs + {1e9 * network.seconds_per_byte:.3f} ms/MB, each way"
        points = _points_said(one.evidence.network, network.fixed_s, network.seconds_per_byte)
        click.echo(f"to another node: {price} ({network.source}){points}")
    click.echo(f"memory besides weights: {one.overhead_bytes / 1e6:.1f} MB")
    click.echo(f"a GMAC: {1000 * one.core_seconds_per_gmac():.1f} core-ms")
    for key, value in one.provenance.items():
        click.echo(f"{key}: {value}")


def _latency_rows(one: ModelProfile, batches: Sequence[int], serial_fractions: tuple[float, ...]) -> Iterator[tuple[object, ...]]:
    for cores in sorted(one.whole.seconds):
        cells = (_milliseconds(one.whole.seconds[cores].get(batch)) for batch in batches)
        spread = max((one.spread.get(f"{cores}/{batch}", 0.0) for batch in batches), default=0.0)
        yield (cores, *cells, f"measured, spread up to {100 * spread:.1f} %")
    for serial in serial_fractions:
        table = one.extrapolated(serial).whole
        for cores in _cores_beyond(one):
            cells = (_milliseconds(table.at(cores, batch)) for batch in batches)
            yield (f"{cores}*", *cells, f"extrapolated, {100 * serial:g} % serial")


def _fractions(percents: Sequence[int]) -> tuple[float, ...]:
    return tuple(percent / 100 for percent in percents)


def _cores_beyond(one: ModelProfile) -> list[int]:
    return [cores for cores in SHOWN_BEYOND if cores > max(one.whole.seconds, default=cores)]


def _beyond(one: ModelProfile, serial: float) -> dict[str, Any]:
    """The cells of cores that were not measured, as the profile's document has those that were."""
    model = one.extrapolated(serial)
    batches = sorted({batch for row in one.whole.seconds.values() for batch in row})
    whole_s, *blocks_s = (
        {str(cores): {str(batch): table.at(cores, batch) for batch in batches} for cores in _cores_beyond(one)}
        for table in (model.whole, *model.blocks)
    )
    return {"serial_fraction": serial, "whole_s": whole_s, "blocks_s": blocks_s}


def _block_rows(one: ModelProfile, batches: Sequence[int]) -> Iterator[tuple[object, ...]]:
    cores = min(one.whole.seconds)
    loads_s = next(iter(one.block_load_s.values()), (0.0,) * len(one.blocks))
    for number, (block, table, load_s) in enumerate(zip(one.layers.blocks, one.blocks, loads_s, strict=True)):
        cells = (_milliseconds(table.seconds.get(cores, {}).get(batch)) for batch in batches)
        worst = one.evidence.worst_block_spread(number)
        spread = "-" if worst is None else f"{100 * worst:.1f} %"
        size = (f"{block.parameter_bytes / 1e6:.2f}", f"{block.macs / 1e9:.3f}")
        yield (block.name, *size, *cells, spread, _milliseconds(load_s))


def _points_said(points: Points | None, fixed_s: float, seconds_per_byte: float) -> str:
    """What a line was fitted through, and how well; nothing where that was not kept."""
    if points is None or not points.sizes_bytes:
        return ""
    sizes = f"{len(points.sizes_bytes)} sizes up to {max(points.sizes_bytes) / 1e6:.1f} MB"
    off = points.off(fixed_s, seconds_per_byte)
    return f"; {sizes}, spread up to {100 * points.spread:.0f} %, up to {100 * off:.0f} % off the line"


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.2f}"
