"""`gnomon plan` and `gnomon predict`: the cheapest buffer that meets a percentile, and the latency behind one buffer.

`plan` chooses from the arrival process, the sizes of instances with their service times, and their prices. It prints the plan,
the latency that it predicts, and why the neighbouring plans lost.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from gnomon_cli.command import Command
from gnomon_cli.commands.simulation import FILE, fit_file
from gnomon_cli.options import Duration, NewFile, json_option
from gnomon_cli.output import EXIT_FAILURE, CommandFailed, WrongCommand, note, print_json, print_table
from gnomon_core.errors import GnomonError
from gnomon_core.lambda_pricing import LARGEST_MB, MB_PER_CORE
from gnomon_core.units import MEGABYTE

if TYPE_CHECKING:
    from gnomon_planner.billing import Billing
    from gnomon_planner.fit import Fit
    from gnomon_planner.latency import Latency, ServiceTimes
    from gnomon_planner.maps import Map
    from gnomon_planner.optimizer import Landscape
    from gnomon_planner.plans import Choice, Plan, Size


MS_PER_S = 1000.0
PER_MILLION = 1e6
HOUR_S = 3600.0
EC2 = ("ec2:c5.4xlarge", "ec2:t2.nano")


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
    gnomon plan --trace twitter_may25_1s.csv.gz --start 19h --duration 1h --profile resnet50.json --slo-ms 800
    gnomon plan --rate 50 --service-ms 40,52,64,76 --slo-ms 200 --percentile 99 --plot plan.png
    gnomon plan --map map.json --sizes lambda.json --platform lambda --budget 2.50 --json
    """,
)
@click.option("--trace", type=FILE, help="Recorded demand, as `gnomon fit-arrivals` takes it.")
@click.option("--column", help="Function of a trace with several; default all together.")
@click.option("--start", type=Duration(), default=0.0, metavar="DURATION", help="Beginning of the stretch in the trace.")
@click.option("--duration", type=Duration(), default=None, metavar="DURATION", help="Length of the stretch; default to the end.")
@click.option("--map", "map_file", type=FILE, help="A MAP instead of a trace, as `gnomon fit-arrivals --out` writes it.")
@click.option("--rate", type=float, metavar="RPS", help="Poisson arrivals instead of a trace.")
@click.option("--profile", type=FILE, help="A model's profile: service times by cores and batch.")
@click.option("--sizes", type=FILE, help="Service times by memory and batch, or measured cells to model them by.")
@click.option("--service-ms", type=Numbers(), metavar="S1,…", help="Service times by batch, of one size of instance.")
@click.option(
    "--memory-mb",
    type=click.FloatRange(min=0, min_open=True),
    default=1769.0,
    help="Memory of that size of instance; default 1769.",
)
@click.option(
    "--cores", type=click.FloatRange(min=0, min_open=True), default=1.0, help="Cores of that size of instance; default 1."
)
@click.option("--slo-ms", type=float, help="Latency objective: find the cheapest plan whose percentile is within it.")
@click.option(
    "--budget", type=float, metavar="USD", help="Most dollars per million requests: find the quickest plan within them."
)
@click.option("--percentile", type=float, default=95.0, help="Percentile of the latency; default 95.")
@click.option(
    "--max-batch",
    type=click.IntRange(1, 128),
    default=32,
    help="Largest batch; default 32, or the largest with a known service time.",
)
@click.option("--timeouts-ms", default="10:490:10", help="FIRST:LAST:STEP or a list; default 10:490:10.")
@click.option(
    "--platform", type=click.Choice(("lambda", "held")), default=None, help="Pay per call, or for provisioned instances."
)
@click.option(
    "--price",
    type=click.Choice(("x86", "arm", "paper", *EC2)),
    default="x86",
    help="Prices of Lambda (paper: billed by 100 ms), or ec2: an instance pays for its share of such a machine's cores.",
)
@click.option(
    "--usd-per-core-hour", type=click.FloatRange(min=0), default=None, help="Price of provisioned cores; default Fargate's."
)
@click.option(
    "--usd-per-gb-hour", type=click.FloatRange(min=0), default=None, help="Price of provisioned memory; default Fargate's."
)
@click.option("--plot", type=NewFile(), default=None, help="Draw the predicted distribution; needs matplotlib.")
@json_option
def plan(
    *, slo_ms: float | None, budget: float | None, percentile: float, plot: Path | None, as_json: bool, **inputs: Any
) -> None:
    """Find the buffer and the size of instance that meet a latency at the least cost, or the least latency within a budget.

    Where nothing does, the nearest plan is shown and the exit code is 1.
    """
    if (slo_ms is None) == (budget is None):
        raise WrongCommand("Say what the plan is for.", "Give either --slo-ms or --budget.")
    slo_s = None if slo_ms is None else slo_ms / MS_PER_S
    budget_usd = None if budget is None else budget / PER_MILLION
    fitted = _fit(inputs)
    try:
        process = process_of(inputs["rate"], inputs["map_file"]) if fitted is None else fitted.process
        landscape = _landscape(process, percentile, **inputs)
        choice = landscape.cheapest(slo_s) if slo_s is not None else landscape.quickest(budget_usd or 0.0)
    except GnomonError as error:
        raise WrongCommand(error.message, error.hint) from None
    _show(landscape, choice, slo_s, budget_usd, fitted, as_json=as_json, plot=plot)
    if choice.failed:
        note(f"Error: {choice.failed}")
        click.get_current_context().exit(EXIT_FAILURE)


def _show(
    landscape: Landscape,
    choice: Choice,
    slo_s: float | None,
    budget_usd: float | None,
    fitted: Fit | None,
    *,
    as_json: bool,
    plot: Path | None,
) -> None:
    latency = choice.plan.latency(landscape.process)
    losers = [
        (word, other, why_not(choice, other, slo_s, budget_usd, landscape.percent))
        for word, other in landscape.neighbours(choice.plan)
    ]
    if as_json:
        print_plan_json(landscape, choice, losers, latency, fitted)
    else:
        print_plan(landscape, choice, losers, latency, fitted)
    for text in fitted.notes if fitted is not None else ():
        note(text)
    if plot is not None:
        draw(plot, latency, choice, slo_s, landscape.percent)
        note(f"Wrote {plot}.")


def _fit(inputs: dict[str, Any]) -> Fit | None:
    """The arrival process fitted to the trace; None without a trace.

    Raises:
        GnomonError: 400 for what cannot be read or has no rate, as `gnomon fit-arrivals` says it.
        WrongCommand: there are several ways given in which requests arrive, or none.

    """
    if sum(inputs[name] is not None for name in ("trace", "map_file", "rate")) != 1:
        raise WrongCommand("Say how requests arrive.", "Give one of --trace, --map and --rate.")
    if inputs["trace"] is None:
        return None
    return fit_file(inputs["trace"], inputs["column"], inputs["start"], inputs["duration"])


def _landscape(process: Map, percentile: float, **inputs: Any) -> Landscape:
    from gnomon_planner.optimizer import Landscape  # noqa: PLC0415 - numpy takes longer to import than help may take
    from gnomon_planner.plans import Space  # noqa: PLC0415

    on_lambda = _on_lambda(inputs)
    sizes = _sizes(inputs, on_lambda=on_lambda)
    largest_batch, max_batch = max((len(size.service_s) for size in sizes), default=0), inputs["max_batch"]
    given = click.get_current_context().get_parameter_source("max_batch") is ParameterSource.COMMANDLINE
    if given and largest_batch < max_batch:
        note(f"Batches of up to {largest_batch} are planned, not {max_batch}: longer ones have no known service time.")
    space = Space(sizes, tuple(range(1, largest_batch + 1)), timeouts_of(inputs["timeouts_ms"]))
    return Landscape(process, space, _billing(inputs, on_lambda=on_lambda), percentile)


def _on_lambda(inputs: dict[str, Any]) -> bool:
    """True if calls are paid: where nothing says otherwise, without a profile and a price of machines."""
    if inputs["price"] not in EC2:
        return inputs["platform"] == "lambda" or (inputs["platform"] is None and inputs["profile"] is None)
    if inputs["platform"] == "lambda":
        raise WrongCommand(f"{inputs['price']} is no price of Lambda.", "Leave --platform lambda out.")
    if inputs["usd_per_core_hour"] is not None or inputs["usd_per_gb_hour"] is not None:
        raise WrongCommand(f"{inputs['price']} says what a core costs.", "Leave --usd-per-core-hour and --usd-per-gb-hour out.")
    return False


def _sizes(inputs: dict[str, Any], *, on_lambda: bool) -> tuple[Size, ...]:
    if sum(inputs[name] is not None for name in ("profile", "sizes", "service_ms")) != 1:
        raise WrongCommand("Say how long batches take.", "Give one of --profile, --sizes and --service-ms.")
    max_batch = inputs["max_batch"]
    if inputs["profile"] is not None:
        return sizes_of_profile(inputs["profile"], max_batch, on_lambda=on_lambda)
    if inputs["sizes"] is not None:
        return sizes_of_file(inputs["sizes"], max_batch, on_lambda=on_lambda)
    return single_size(inputs["service_ms"], max_batch, inputs["memory_mb"], inputs["cores"])


def _billing(inputs: dict[str, Any], *, on_lambda: bool) -> Billing:
    from gnomon_planner.billing import EC2 as MACHINES  # noqa: PLC0415
    from gnomon_planner.billing import FARGATE, LAMBDA, PerCall, Provisioned, ProvisionedPrice  # noqa: PLC0415  # noqa: PLC0415

    if on_lambda:
        return PerCall(LAMBDA[inputs["price"]])
    if inputs["price"] in EC2:
        return Provisioned(MACHINES[inputs["price"].removeprefix("ec2:")].provisioned())
    core, memory = inputs["usd_per_core_hour"], inputs["usd_per_gb_hour"]
    return Provisioned(
        ProvisionedPrice(
            FARGATE.since,
            FARGATE.usd_per_core_s if core is None else core / HOUR_S,
            FARGATE.usd_per_gb_s if memory is None else memory / HOUR_S,
            FARGATE.source,
        )
    )


MOST_TIMEOUTS = MOST_SIZES = 1000
FORMS = (
    'Sizes are {"sizes": [{"memory_mb", "cores", "service_ms": [S1, S2, …], "ratios": [0.95, 1, 1.1, …]}, …]}, '
    'or {"measured": [{"memory_mb" or "cores", "batch", "ms"}, …]}, as `gnomon lambda-profile` writes them with their runs.'
)


def sizes_of_file(file: Path, max_batch: int, *, on_lambda: bool) -> tuple[Size, ...]:
    """Sizes with their service times, or such as a model of measured cells says.

    The model is asked for the measured memories and every 64 MB between them, or for the measured cores and whole ones between
    them, and noted with its error; on Lambda, up to the largest memory there is. A batch smaller than all measured ones takes at
    most as long as the smallest of them, and that is planned. Where the runs of the cells are in the file as well (`cells`),
    service varies as they do.

    Raises:
        GnomonError: 400 for measurements that make no model, and for ratios that are not positive numbers.
        WrongCommand: the file holds no sizes, far too many, or measurements of which Lambda has no such instances.

    """
    from gnomon_planner.plans import Size  # noqa: PLC0415
    from gnomon_planner.service_time import reduced_ratios  # noqa: PLC0415

    document = _read(file)
    try:
        if "measured" in document:
            runs = [[float(run_s) for run_s in cell["runs_s"]] for cell in document.get("cells", ())]
            sizes = _modelled(document["measured"], runs, max_batch)
            fitting = tuple(size for size in sizes if not on_lambda or size.memory_mb <= LARGEST_MB)
            if not fitting:
                raise WrongCommand(
                    f"{file}: no measured size fits into an instance of Lambda.", "--platform held has larger ones."
                )
            return fitting
        return tuple(
            Size(
                _name(float(row["memory_mb"]), row.get("cores")),
                float(row["memory_mb"]),
                float(row.get("cores", float(row["memory_mb"]) / MB_PER_CORE)),
                tuple(value / MS_PER_S for value in _numbers(row["service_ms"]))[:max_batch],
                reduced_ratios(_numbers(row.get("ratios", [1.0]))),
            )
            for row in document["sizes"]
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise WrongCommand(f"{file}: {type(error).__name__}: {error}.", FORMS) from None


def sizes_of_profile(file: Path, max_batch: int, *, on_lambda: bool) -> tuple[Size, ...]:
    """The measured numbers of cores of a model's profile; on Lambda the memory that gives so many cores.

    Service varies by the mean spread of the batches that were measured on so many cores.

    Raises:
        WrongCommand: the file is no profile, or Lambda has no such instances.

    """
    from gnomon_core.profiles import ModelProfile  # noqa: PLC0415
    from gnomon_planner.plans import Size  # noqa: PLC0415
    from gnomon_planner.service_time import ratios_of_quartile_range  # noqa: PLC0415

    try:
        profile = ModelProfile.from_json(_read(file))
    except ValueError as error:
        raise WrongCommand(f"{file}: {error}.", "`gnomon models profile` writes profiles.") from None
    held_mb = profile.memory_bytes(profile.layers.parameter_bytes()) / MEGABYTE
    sizes = []
    for cores, row in sorted(profile.whole.seconds.items()):
        memory_mb = cores * MB_PER_CORE if on_lambda else held_mb
        if on_lambda and not held_mb <= memory_mb <= LARGEST_MB:
            continue
        seconds = (profile.whole.at(cores, batch) for batch in range(1, min(max_batch, max(row)) + 1))
        times = tuple(duration_s for duration_s in seconds if duration_s is not None)
        spreads = [profile.spread[cell] for batch in row if (cell := f"{cores}/{batch}") in profile.spread]
        ratios = ratios_of_quartile_range(sum(spreads) / max(1, len(spreads)))
        sizes.append(Size(_name(memory_mb, cores), memory_mb, cores, times, ratios))
    if not sizes:
        raise WrongCommand(f"{file}: no measured number of cores fits into an instance of Lambda.")
    return tuple(sizes)


def single_size(service_ms: tuple[float, ...], max_batch: int, memory_mb: float, cores: float) -> tuple[Size, ...]:
    """A single instance size; a single service time holds for all batch sizes."""
    from gnomon_planner.plans import Size  # noqa: PLC0415

    times = service_ms * max_batch if len(service_ms) == 1 else service_ms
    return (Size(_name(memory_mb, cores), memory_mb, cores, tuple(time_s / MS_PER_S for time_s in times)[:max_batch]),)


def timeouts_of(text: str) -> tuple[float, ...]:
    """Seconds, of `first:last:step` or a list of milliseconds.

    Raises:
        WrongCommand: it is neither.

    """
    try:
        if ":" in text:
            first, last, step = (float(part) for part in text.split(":"))
            count = math.floor((last - first) / step + 1e-9) + 1 if step > 0.0 else 0
            timeouts_ms = [first + number * step for number in range(min(count, MOST_TIMEOUTS + 1))]
        else:
            timeouts_ms = sorted({float(part) for part in text.split(",")})
    except (ValueError, OverflowError):
        raise WrongCommand(f"{text!r} names no timeouts.", "Write 10:500:10 or 5,10,20, in milliseconds.") from None
    if not 0 < len(timeouts_ms) <= MOST_TIMEOUTS:
        raise WrongCommand(f"{text!r} names no timeouts, or more than {MOST_TIMEOUTS}.")
    return tuple(timeout_ms / MS_PER_S for timeout_ms in timeouts_ms)


def _modelled(cells: Sequence[Mapping[str, Any]], runs: Sequence[Sequence[float]], max_batch: int) -> tuple[Size, ...]:
    from gnomon_planner.plans import Size  # noqa: PLC0415
    from gnomon_planner.service_time import (  # noqa: PLC0415
        Measurement,
        fit_service_times,
        ratios_of_runs,
    )

    by_cores = all("cores" in cell for cell in cells)
    key, core_size = ("cores", 1.0) if by_cores else ("memory_mb", MB_PER_CORE)
    points = [Measurement(float(cell[key]), int(cell["batch"]), float(cell["ms"]) / MS_PER_S) for cell in cells]
    model = fit_service_times(points, core_size=core_size)
    note(f"Service times by {len(points)} cells: {model.description}.")
    least, most = model.batches
    if least > 1:
        note(
            f"Batches of fewer than {least} were not measured: they are planned to take as long as one of {least}, which is more."
        )
    first, last = model.sizes
    step = 1.0 if by_cores else 64.0
    if (last - first) / step > MOST_SIZES:
        raise WrongCommand(f"There are more than {MOST_SIZES} sizes from {first:g} to {last:g} {'cores' if by_cores else 'MB'}.")
    begin = float(math.ceil(first)) if by_cores else first
    between = {begin + step * number for number in range(int((last - begin) // step) + 1)}
    ratios = ratios_of_runs(runs)
    found = []
    for size in sorted(between | {point.size for point in points}):
        cores, memory_mb = (size, size * MB_PER_CORE) if by_cores else (size / MB_PER_CORE, size)
        times = tuple(model.seconds(size, max(batch, least)) for batch in range(1, min(max_batch, most) + 1))
        found.append(Size(_name(memory_mb, cores if by_cores else None), memory_mb, cores, times, ratios))
    return tuple(found)


def _name(memory_mb: float, cores: object) -> str:
    return f"{memory_mb:.0f} MB" if cores is None else f"{cores:g} core{'' if cores == 1 else 's'}, {memory_mb:.0f} MB"


def _numbers(listed: object) -> list[float]:
    if not isinstance(listed, list):
        raise TypeError(f"{listed!r} is no list of numbers")
    return [float(entry) for entry in listed]


def _read(file: Path) -> Mapping[str, Any]:
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise WrongCommand(f"{file} is no JSON: {error}.") from None
    if not isinstance(document, Mapping):
        raise WrongCommand(f"{file} holds no JSON object.", FORMS)
    return document


CDF = (1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9)
COLORS = {"cdf": "#0072b2", "slo": "#d55e00"}


def print_plan(
    landscape: Landscape, choice: Choice, losers: Sequence[tuple[str, Plan, str]], latency: Latency, fitted: Fit | None
) -> None:
    """Print a plan as text; `fitted` is the process fitted to the arrivals, None if the process was given."""
    plan = choice.plan
    click.echo(f"{'Nearest plan' if choice.failed else 'Plan'}: {plan}")
    price = f"${plan.usd_per_request * PER_MILLION:.4g} per million requests"
    click.echo(f"P{landscape.percent:g} {plan.latency_s * MS_PER_S:.1f} ms, {price}")
    if plan.instances is not None:
        waiting = sum(share for wait_s, share in plan.instance_waits if wait_s > 0.0)
        click.echo(f"{waiting:.3%} of the batches wait for an instance")
    if fitted is not None:
        chosen = fitted.chosen
        click.echo(
            f"For {chosen.process.rate_rps:.5g} requests/s, {chosen.family}, misfit {chosen.misfit.total:.2f}; 1 is chance"
        )
    click.echo("")
    rows = [(f"P{percent:g}", f"{latency.percentile(percent) * MS_PER_S:.1f} ms") for percent in CDF]
    print_table(("PERCENTILE", "LATENCY"), rows)
    if losers:
        click.echo("")
        table = [
            (word, str(other), f"{other.latency_s * MS_PER_S:.1f} ms", f"${other.usd_per_request * PER_MILLION:.4g}", why)
            for word, other, why in losers
        ]
        print_table(("NEIGHBOUR", "PLAN", f"P{landscape.percent:g}", "PER MILLION", "WHY NOT"), table)


def print_plan_json(
    landscape: Landscape, choice: Choice, losers: Sequence[tuple[str, Plan, str]], latency: Latency, fitted: Fit | None
) -> None:
    """Print a plan as JSON; `fit` is as in `gnomon fit-arrivals --json`, null if the process was given."""
    print_json(
        {
            "failed": choice.failed,
            "percentile": landscape.percent,
            "plan": _document(choice.plan),
            "percentiles_ms": {f"{percent:g}": latency.percentile(percent) * MS_PER_S for percent in CDF},
            "neighbours": [{"direction": word, "why": why} | _document(other) for word, other, why in losers],
            "front": [_document(plan) for plan in landscape.pareto_front()],
            "arrivals": landscape.process.to_json(),
            "fit": None if fitted is None else fitted.to_json(),
        }
    )


def why_not(choice: Choice, other: Plan, slo_s: float | None, budget_usd: float | None, percent: float) -> str:
    """The reasons why another plan is worse than the chosen one."""
    plan = choice.plan
    if slo_s is not None and other.latency_s > slo_s:
        return f"P{percent:g} misses the SLO by {(other.latency_s - slo_s) * MS_PER_S:.1f} ms"
    if budget_usd is not None and other.usd_per_request > budget_usd:
        return f"costs {other.usd_per_request / budget_usd - 1.0:.1%} more than the budget"
    if slo_s is not None and other.usd_per_request > plan.usd_per_request:
        return f"costs {other.usd_per_request / plan.usd_per_request - 1.0:.1%} more"
    if budget_usd is not None and other.latency_s > plan.latency_s:
        return f"P{percent:g} is {(other.latency_s - plan.latency_s) * MS_PER_S:.1f} ms longer"
    return "no better"


def draw(file: Path, latency: Latency, choice: Choice, slo_s: float | None, percent: float) -> None:
    """The predicted distribution as a picture."""
    import matplotlib as mpl  # noqa: PLC0415 - only for pictures
    import numpy as np  # noqa: PLC0415

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    times_s = np.linspace(0.0, latency.percentile(99.99) * 1.05, 600)
    figure, axes = plt.subplots(figsize=(7, 4))
    axes.plot(times_s * MS_PER_S, latency.cdf(times_s), color=COLORS["cdf"], label="predicted")
    axes.axhline(percent / 100.0, color="0.6", linewidth=0.8)
    if slo_s is not None:
        axes.axvline(slo_s * MS_PER_S, color=COLORS["slo"], linestyle="--", label=f"SLO of P{percent:g}")
    axes.set(xlabel="latency (ms)", ylabel="share of requests", title=str(choice.plan), ylim=(0.0, 1.02))
    axes.legend(loc="lower right", frameon=False)
    figure.tight_layout()
    try:
        figure.savefig(file, dpi=150)
    except ValueError as error:
        raise CommandFailed(f"{file} cannot be drawn: {error}.", "Name it plan.png, plan.svg or plan.pdf.") from None
    plt.close(figure)


def _document(plan: Plan) -> dict[str, Any]:
    """The plan as JSON. `timeout_ms` is null where a batch waits until it is full: JSON has no infinity."""
    return {
        "size": plan.size.name,
        "memory_mb": plan.size.memory_mb,
        "cores": plan.size.cores,
        "batch": plan.buffer.batch,
        "timeout_ms": plan.buffer.timeout_s * MS_PER_S if math.isfinite(plan.buffer.timeout_s) else None,
        "latency_ms": plan.latency_s * MS_PER_S,
        "usd_per_million": plan.usd_per_request * PER_MILLION,
        "instances": plan.instances,
    }


FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
METHODS = ("exact", "paper", "paper-literal")
LARGEST_BATCH = 1024


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
    "--service-ms",
    type=Numbers(),
    required=True,
    metavar="S1,…,SB",
    help="Service times by batch size, or one for every batch size.",
)
@click.option(
    "--service-ratios",
    type=Numbers(),
    default=(1.0,),
    metavar="R1,R2,…",
    help="Ratios of a batch's time to its service time, equally likely; default 1.",
)
@click.option(
    "--percentiles", type=Numbers(), default=(50.0, 90.0, 95.0, 99.0), help="Percentiles of the latency; default 50,90,95,99."
)
@click.option(
    "--method",
    type=click.Choice(METHODS),
    default="exact",
    help="exact (the default), BATCH's equations as corrected, or as printed.",
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
        latencies_ms = {f"{percent:.15g}": latency.percentile(percent) * MS_PER_S for percent in percentiles}
    except GnomonError as error:
        raise WrongCommand(error.message, error.hint) from None
    if not all(math.isfinite(value) for value in latencies_ms.values()):
        raise WrongCommand("The latency is more than a number can hold.", "Give times that are shorter, or a higher rate.")
    if as_json:
        print_json({"percentiles_ms": {percent: round(value, 9) for percent, value in latencies_ms.items()}})
    else:
        print_table(("PERCENTILE", "LATENCY"), [(f"P{percent}", f"{value:.3f} ms") for percent, value in latencies_ms.items()])


def _service(service_ms: tuple[float, ...], ratios: tuple[float, ...], batch: int) -> ServiceTimes:
    from gnomon_planner.latency import ServiceTimes  # noqa: PLC0415 - numpy takes longer to import than help may take

    if len(service_ms) not in {1, batch}:
        raise WrongCommand(
            f"--service-ms has {len(service_ms)} times, --batch is {batch}.", "Give one for each batch size, or one for all."
        )
    every = service_ms * batch if len(service_ms) == 1 else service_ms
    return ServiceTimes(tuple(tuple(median_ms / MS_PER_S * ratio for ratio in ratios) for median_ms in every))


def _latency(process: Map, batch: int, timeout_ms: float, service: ServiceTimes, method: str) -> Latency:
    from gnomon_planner.buffer import BufferPlan  # noqa: PLC0415 - as above
    from gnomon_planner.latency import ExactLatency, PaperLatency  # noqa: PLC0415 - as above

    plan = BufferPlan(batch, timeout_ms / MS_PER_S)
    if method == "exact":
        return ExactLatency(process, plan, service)
    return PaperLatency(process, plan, service, literal=method == "paper-literal")


def process_of(rate: float | None, map_file: Path | None) -> Map:
    """The arrival process of --rate or --map.

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
