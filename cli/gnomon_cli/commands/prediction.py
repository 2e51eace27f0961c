"""`gnomon predict`: the latency of requests behind one buffer plan, as percentiles."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gnomon_cli.command import Command
from gnomon_cli.errors import WrongCommand
from gnomon_cli.options import json_option
from gnomon_cli.output import print_json, print_table
from gnomon_core.errors import GnomonError

if TYPE_CHECKING:  # numpy takes longer to import than help may take
    from gnomon_planner.latency import Latency, ServiceTimes
    from gnomon_planner.maps import Map

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
METHODS = ("exact", "paper", "paper-literal")
LARGEST_BATCH = 1024
MS_PER_S = 1000.0


class Numbers(click.ParamType[tuple[float, ...]]):
    """`1,2.5,4`: numbers between commas."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(float(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is not a list of numbers such as 50,90.5,99.", param, ctx)


@click.command(
    cls=Command,
    examples="""
    gnomon predict --rate 50 --batch 4 --timeout-ms 100 --service-ms 20,25,30,35
    gnomon predict --map bursts.json --batch 8 --timeout-ms 50 --service-ms 12 --percentiles 50,99,99.9 --json
    gnomon predict --rate 50 --batch 4 --timeout-ms 100 --service-ms 20,25,30,35 --service-ratios 0.95,1,1,1.2
    gnomon predict --rate 50 --batch 4 --timeout-ms 100 --service-ms 20,25,30,35 --method paper
    """,
)
@click.option("--rate", type=float, metavar="RPS", help="Poisson arrivals at this rate.")
@click.option("--map", "map_file", type=FILE, help='A MAP: {"D0": [[…]], "D1": [[…]]}, per second.')
@click.option("--batch", type=click.IntRange(1, LARGEST_BATCH), required=True, help="B: the largest batch.")
@click.option("--timeout-ms", type=float, required=True, help="T: how long the first request of a batch waits at most; or inf.")
@click.option(
    "--service-ms", type=Numbers(), required=True, metavar="S1,…,SB", help="By batch size, or one time for every batch size."
)
@click.option(
    "--service-ratios",
    type=Numbers(),
    default=(1.0,),
    metavar="R1,R2,…",
    help="A batch takes one of these times its service time, each as likely; default 1.",
)
@click.option("--percentiles", type=Numbers(), default=(50.0, 90.0, 95.0, 99.0), help="Default 50,90,95,99.")
@click.option(
    "--method",
    type=click.Choice(METHODS),
    default="exact",
    help="exact (the default), BATCH's equations, or as they are printed.",
)
@json_option
def predict(
    *,
    rate: float | None,
    map_file: Path | None,
    batch: int,
    timeout_ms: float,
    service_ms: tuple[float, ...],
    service_ratios: tuple[float, ...],
    percentiles: tuple[float, ...],
    method: str,
    as_json: bool,
) -> None:
    """Predict the latency of requests that wait in a buffer until B are together or T is over.

    Instances are unlimited, as on Lambda: a batch that leaves the buffer is served at once.
    """
    try:
        service = _service(service_ms, service_ratios, batch)
        latency = _latency(process_of(rate, map_file), batch, timeout_ms, service, method)
        found = {f"{percent:.15g}": latency.percentile(percent) * MS_PER_S for percent in percentiles}
    except GnomonError as error:
        raise WrongCommand(error.message, error.hint) from None
    if not all(math.isfinite(value) for value in found.values()):
        raise WrongCommand("The latency is more than a number can hold.", "Give times that are shorter, or a higher rate.")
    if as_json:
        print_json({"percentiles_ms": {percent: round(value, 9) for percent, value in found.items()}})
    else:
        print_table(("PERCENTILE", "LATENCY"), [(f"P{percent}", f"{value:.3f} ms") for percent, value in found.items()])


def _service(service_ms: tuple[float, ...], ratios: tuple[float, ...], batch: int) -> ServiceTimes:
    from gnomon_planner.latency import ServiceTimes  # noqa: PLC0415 - numpy takes longer to import than help may take

    if len(service_ms) not in {1, batch}:
        raise WrongCommand(
            f"--service-ms has {len(service_ms)} times, --batch is {batch}.", "Give one for each batch size, or one for all."
        )
    every = service_ms * batch if len(service_ms) == 1 else service_ms
    return ServiceTimes(tuple(tuple(one / MS_PER_S * ratio for ratio in ratios) for one in every))


def _latency(process: Map, batch: int, timeout_ms: float, service: ServiceTimes, method: str) -> Latency:
    from gnomon_planner.buffer import BufferPlan  # noqa: PLC0415 - as above
    from gnomon_planner.latency import ExactLatency  # noqa: PLC0415
    from gnomon_planner.paper import PaperLatency  # noqa: PLC0415

    plan = BufferPlan(batch, timeout_ms / MS_PER_S)
    if method == "exact":
        return ExactLatency(process, plan, service)
    return PaperLatency(process, plan, service, literal=method == "paper-literal")


def process_of(rate: float | None, map_file: Path | None) -> Map:
    """How requests arrive, of --rate or --map.

    Raises:
        GnomonError: 400 `bad_map`.
        WrongCommand: neither or both are given, or the rate is none.

    """
    from gnomon_planner.maps import Map  # noqa: PLC0415

    if (rate is None) == (map_file is None):
        raise WrongCommand("Say how requests arrive.", "Give either --rate or --map.")
    if rate is not None:
        if not 0.0 < rate < float("inf"):
            raise WrongCommand(f"A rate of {rate:g} requests/s.", "A rate is a positive number.")
        return Map.poisson(rate)
    return read_map(map_file or Path())


def read_map(file: Path) -> Map:
    """The MAP in a file.

    Raises:
        GnomonError: 400 `bad_map`: there is none in it.
        WrongCommand: the file is no JSON.

    """
    from gnomon_planner.maps import Map  # noqa: PLC0415

    try:
        return Map.from_json(json.loads(file.read_text()))
    except (OSError, ValueError, RecursionError) as error:
        raise WrongCommand(f"{file} is no JSON: {error}.") from None
