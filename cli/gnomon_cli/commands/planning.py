"""`gnomon plan`: from recorded demand and service times to the cheapest buffer that meets a percentile."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from gnomon_cli import plan_inputs, plan_output
from gnomon_cli.command import Command
from gnomon_cli.commands.arrivals import fit_file
from gnomon_cli.commands.prediction import MS_PER_S, Numbers, process_of
from gnomon_cli.commands.simulation import FILE
from gnomon_cli.errors import EXIT_FAILURE, WrongCommand
from gnomon_cli.options import Duration, NewFile, json_option
from gnomon_cli.output import note
from gnomon_core.errors import GnomonError

if TYPE_CHECKING:
    from gnomon_planner.fit import Fit
    from gnomon_planner.maps import Map
    from gnomon_planner.optimizer import Billing, Landscape
    from gnomon_planner.plans import Choice, Size

HOUR_S = 3600.0
EC2 = ("ec2:c5.4xlarge", "ec2:t2.nano")
PER_MILLION = 1e6


@click.command(
    cls=Command,
    examples="""
    gnomon plan --trace twitter_may25_1s.csv.gz --start 19h --duration 1h --profile resnet50.json --slo-ms 800
    gnomon plan --rate 50 --service-ms 40,52,64,76 --slo-ms 200 --percentile 99 --plot plan.png
    gnomon plan --map map.json --sizes lambda.json --platform lambda --budget 2.50 --json
    """,
)
@click.option("--trace", type=FILE, help="Recorded demand, as `gnomon fit-arrivals` takes it.")
@click.option("--column", help="Of a trace with several functions, which one; default all together.")
@click.option("--start", type=Duration(), default=0.0, metavar="DURATION", help="Where in the trace to begin.")
@click.option("--duration", type=Duration(), default=None, metavar="DURATION", help="How much of it.")
@click.option("--map", "map_file", type=FILE, help="A MAP instead of a trace, as `gnomon fit-arrivals --out` writes it.")
@click.option("--rate", type=float, metavar="RPS", help="Poisson arrivals instead of a trace.")
@click.option("--profile", type=FILE, help="A model's profile: service times by cores and batch.")
@click.option("--sizes", type=FILE, help="Service times by memory and batch, or measured cells to model them by.")
@click.option("--service-ms", type=Numbers(), metavar="S1,…", help="Service times by batch, of one size of instance.")
@click.option("--memory-mb", type=click.FloatRange(min=0, min_open=True), default=1769.0, help="Of that size; default 1769.")
@click.option("--cores", type=click.FloatRange(min=0, min_open=True), default=1.0, help="Of that size; default 1.")
@click.option("--slo-ms", type=float, help="Find the cheapest plan whose percentile is within it.")
@click.option("--budget", type=float, metavar="USD", help="Find the quickest plan that costs no more per million requests.")
@click.option("--percentile", type=float, default=95.0, help="Default 95.")
@click.option("--max-batch", type=click.IntRange(1, 128), default=32, help="Default 32, or what is known of service times.")
@click.option("--timeouts-ms", default="10:490:10", help="FIRST:LAST:STEP or a list; default 10:490:10.")
@click.option("--platform", type=click.Choice(("lambda", "held")), default=None, help="Per call, or instances that are held.")
@click.option(
    "--price",
    type=click.Choice(("x86", "arm", "paper", *EC2)),
    default="x86",
    help="Of Lambda, where paper bills by 100 ms; ec2: an instance pays for its share of such a machine's cores.",
)
@click.option("--usd-per-core-hour", type=click.FloatRange(min=0), default=None, help="Of held instances; default as Fargate.")
@click.option("--usd-per-gb-hour", type=click.FloatRange(min=0), default=None, help="Of held instances; default as Fargate.")
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
        (word, other, plan_output.why_not(choice, other, slo_s, budget_usd, landscape.percent))
        for word, other in landscape.neighbours(choice.plan)
    ]
    if as_json:
        plan_output.show_json(landscape, choice, losers, latency, fitted)
    else:
        plan_output.show(landscape, choice, losers, latency, fitted)
    for text in fitted.notes if fitted is not None else ():
        note(text)
    if plot is not None:
        plan_output.plot(plot, latency, choice, slo_s, landscape.percent)
        note(f"Wrote {plot}.")


def _fit(inputs: dict[str, Any]) -> Fit | None:
    """That of the trace, where there is one.

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
    most, asked = max((len(size.service_s) for size in sizes), default=0), inputs["max_batch"]
    given = click.get_current_context().get_parameter_source("max_batch") is ParameterSource.COMMANDLINE
    if given and most < asked:
        note(f"Batches of up to {most} are planned, not {asked}: longer ones have no known service time.")
    space = Space(sizes, tuple(range(1, most + 1)), plan_inputs.timeouts_of(inputs["timeouts_ms"]))
    return Landscape(process, space, _billing(inputs, on_lambda=on_lambda), percentile)


def _on_lambda(inputs: dict[str, Any]) -> bool:
    """Whether calls are paid: where nothing says otherwise, without a profile and a price of machines."""
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
    most = inputs["max_batch"]
    if inputs["profile"] is not None:
        return plan_inputs.sizes_of_profile(inputs["profile"], most, on_lambda=on_lambda)
    if inputs["sizes"] is not None:
        return plan_inputs.sizes_of_file(inputs["sizes"], most, on_lambda=on_lambda)
    return plan_inputs.single_size(inputs["service_ms"], most, inputs["memory_mb"], inputs["cores"])


def _billing(inputs: dict[str, Any], *, on_lambda: bool) -> Billing:
    from gnomon_planner.optimizer import Held, PerCall  # noqa: PLC0415
    from gnomon_planner.plans import EC2 as MACHINES  # noqa: PLC0415
    from gnomon_planner.plans import HELD, LAMBDA, HeldPrice  # noqa: PLC0415

    if on_lambda:
        return PerCall(LAMBDA[inputs["price"]])
    if inputs["price"] in EC2:
        return Held(MACHINES[inputs["price"].removeprefix("ec2:")].held())
    core, memory = inputs["usd_per_core_hour"], inputs["usd_per_gb_hour"]
    return Held(
        HeldPrice(
            HELD.since,
            HELD.usd_per_core_s if core is None else core / HOUR_S,
            HELD.usd_per_gb_s if memory is None else memory / HOUR_S,
            HELD.source,
        )
    )
