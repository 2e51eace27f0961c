"""`gnomon simulate`, `replay` and `fit-arrivals`: recorded or generated arrivals.

`simulate` runs them through a policy in virtual time, `replay` sends them to a running gateway, and `fit-arrivals` fits the
arrival process that the planner works with.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gnomon_cli.command import Command, option_group
from gnomon_cli.commands.invoke import body_of, headers_of
from gnomon_cli.deployment import pairs
from gnomon_cli.options import Duration, NewFile, Target, gateway_options, json_option, policy_option
from gnomon_cli.output import CommandFailed, note, print_json, print_table

if TYPE_CHECKING:
    from gnomon_planner.fit import Fit


FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
PERCENT = 100.0
KNOWLEDGE = ("given", "profiled", "learned")
NOISES = ("none", "lognormal", "exponential")
ARRIVALS = {
    "trace": "trace",
    "recorded": "record",
    "poisson": "poisson_rps",
    "rate": "rate_rps",
    "column": "function",
    "start": "start_s",
    "duration": "duration_s",
    "scale": "scale",
    "seed": "seed",
}
"""The field of gnomon_simulator's ArrivalOptions for each option."""


def arrival_options(function: Callable[..., Any]) -> Any:
    """Options for the source of arrivals; passed to the command as `arrivals`, a dict with the fields of `ARRIVALS`."""

    @functools.wraps(function)
    def wrapped(*args: Any, **options: Any) -> Any:
        arrivals = {field: options.pop(option) for option, field in ARRIVALS.items()}
        return function(*args, arrivals=arrivals, **options)

    decorate = option_group(
        click.option("--trace", type=FILE, help="Recorded demand, as `gnomon fit-arrivals` takes it."),
        click.option("--recorded", type=FILE, help="A run that `gnomon replay --record` wrote."),
        click.option("--poisson", type=float, metavar="RPS", help="Poisson arrivals at this rate; with --duration."),
        click.option("--rate", type=float, metavar="RPS", help="Evenly spaced arrivals; with --duration."),
        click.option("--column", help="Function of a trace with several."),
        click.option("--start", type=Duration(), default=0.0, metavar="DURATION", help="Beginning of the stretch in the trace."),
        click.option(
            "--duration", type=Duration(), default=None, metavar="DURATION", help="Length of the stretch; default to the end."
        ),
        click.option("--scale", type=float, default=1.0, help="Factor on a trace's counts or on a rate; default 1."),
        click.option("--seed", type=int, default=1, help="The same seed gives the same run; default 1."),
    )
    return decorate(wrapped)


@click.command(
    cls=Command,
    examples="""
    gnomon simulate --trace twitter_1s.csv.gz --duration 1h --service-time 20ms --annotation gnomon/autoscaler=k-lv
    gnomon simulate classify -f stack.yml --poisson 200 --duration 10m --profile efficientnet-lite0.json
    gnomon simulate --poisson 50 --duration 5m --service-time 30ms --scheduler immediate --scheduler adaptive
    """,
)
@click.argument("name", required=False, default="")
@gateway_options()
@arrival_options
@click.option("-l", "--label", multiple=True, metavar="KEY=VALUE", help="Label of the function.")
@click.option("--annotation", multiple=True, metavar="KEY=VALUE", help="Annotation, such as gnomon/autoscaler=kpa.")
@click.option("--profile", type=FILE, help="Measured latency table of an instance.")
@click.option(
    "--service-time", type=Duration(), default=None, metavar="DURATION", help="Service time of one request, instead of a profile."
)
@click.option(
    "--serial",
    type=click.FloatRange(0, 100),
    default=None,
    metavar="PERCENT",
    help="Serial fraction of Amdahl's law for numbers of cores that the profile lacks.",
)
@click.option("--load-time", type=Duration(), default=None, metavar="DURATION", help="Time until a new instance is ready.")
@click.option("--noise", type=click.Choice(NOISES), default=None, help="Distribution of a batch's latency around its mean.")
@click.option("--noise-cv", type=float, default=0.1, help="Coefficient of variation of lognormal noise; default 0.1.")
@click.option(
    "--knowledge", type=click.Choice(KNOWLEDGE), default="profiled", help="What the gateway knows of latencies; default profiled."
)
@click.option("--nodes", type=click.IntRange(min=1), default=1, help="Number of nodes; default 1.")
@click.option("--node-cores", type=click.IntRange(min=1), default=16, help="Cores of each node; default 16.")
@click.option("--pool", type=click.IntRange(min=0), default=1, help="Empty containers of each node, as `gnomon serve` has it.")
@click.option(
    "--reserved-cores", type=click.FloatRange(min=0), default=0.0, help="Cores of each node that are held for Shadows; default 0."
)
@click.option("--network-gbps", type=float, default=None, help="Bandwidth between nodes; default what the profile says.")
@click.option("--network-rtt-ms", type=float, default=0.0, help="Round-trip time between nodes, with --network-gbps; default 0.")
@click.option("--warm", type=click.IntRange(min=0), default=0, help="Instances that are ready at second 0; default 0.")
@click.option("--scheduler", "schedulers", multiple=True, metavar="NAME", help="Run once with each of these scheduling policies.")
@policy_option
@click.option("--requests", type=NewFile(), default=None, help="File for the outcome of each request.")
@json_option
def simulate(
    *,
    target: Target,
    name: str,
    arrivals: dict[str, Any],
    label: tuple[str, ...],
    annotation: tuple[str, ...],
    service_time: float | None,
    serial: float | None,
    load_time: float | None,
    noise: str | None,
    noise_cv: float,
    as_json: bool,
    **options: Any,
) -> None:
    """Try a scaling and a scheduling policy on a trace, in virtual time, with the objects that serve.

    With NAME and -f, the labels and annotations of that function of a stack file are used.
    """
    from gnomon_simulator import commands  # noqa: PLC0415 - the simulator takes a while to import
    from gnomon_simulator.profiles import Noise  # noqa: PLC0415

    def begun() -> None:
        if serial is not None:
            note(f"Cores that the profile has not are extrapolated, with {serial:g} % serial.")

    labels, annotations = _settings(target, name)
    code = commands.simulate(
        commands.SimulateOptions(
            arrivals=commands.ArrivalOptions(**arrivals),
            labels=labels | pairs(label, "label"),
            annotations=annotations | pairs(annotation, "annotation"),
            service_s=service_time,
            serial_fraction=None if serial is None else serial / PERCENT,
            load_s=load_time,
            noise=Noise(noise, noise_cv) if noise else None,
            json=as_json,
            **options,
        ),
        begun=begun,
    )
    click.get_current_context().exit(code)


@click.command(
    cls=Command,
    examples="""
    gnomon replay classify --poisson 50 --duration 1m -d @photo.jpg --deadline 500ms
    gnomon replay echo --trace twitter_1s.csv.gz --start 10h --duration 5m --scale 0.1 --check-token -d "{token}"
    gnomon replay echo --rate 100 --duration 30s --record run.jsonl && gnomon simulate --recorded run.jsonl --service-time 5ms
    """,
)
@click.argument("name")
@gateway_options()
@arrival_options
@click.option("-d", "--data", default="", metavar="TEXT|@FILE", help="Body of each request; default empty.")
@click.option("-m", "--method", default="POST", help="HTTP method; default POST.")
@click.option("-H", "--header", multiple=True, metavar="'KEY: VALUE'", help="Request header.")
@click.option("--check-token", is_flag=True, help="Send a token of its own with each request and look for it in the answer.")
@click.option(
    "--deadline", type=Duration(), default=30.0, metavar="DURATION", help="Time after which a client gives up; default 30s."
)
@click.option("--max-connections", type=click.IntRange(min=1), default=1024, help="Most open connections; default 1024.")
@click.option("--processes", type=click.IntRange(min=1), default=1, help="Number of processes that share the load; default 1.")
@click.option("--record", type=NewFile(), default=None, help="File for sent and answered requests, for `simulate --recorded`.")
@click.option("--allow-remote", is_flag=True, help="Allow a gateway on another machine.")
@json_option
def replay(
    *,
    target: Target,
    name: str,
    arrivals: dict[str, Any],
    data: str,
    method: str,
    header: tuple[str, ...],
    check_token: bool,
    deadline: float,
    allow_remote: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Send requests to a function (or a URL) at their times, whatever becomes of those before them, and measure.

    A client that gives up closes its connection. Latency counts from the intended time; the generator reports its own lag.
    """
    from gnomon_simulator import commands  # noqa: PLC0415 - the simulator takes a while to import
    from gnomon_simulator.replay import Target as Load  # noqa: PLC0415

    url = name if "://" in name else f"{target.url()}/function/{name}"
    load = Load(url, method.upper(), headers_of(header), body_of(data), check_token, allow_remote)
    chosen = commands.ReplayOptions(commands.ArrivalOptions(**arrivals), load, deadline_s=deadline, json=as_json, **options)
    code = commands.replay(chosen, begun=lambda count, length_s: note(f"Sending {count} requests to {url} in {length_s:.1f} s."))
    click.get_current_context().exit(code)


def _settings(target: Target, name: str) -> tuple[dict[str, str], dict[str, str]]:
    """Labels and annotations of a function of the stack file; none without a name."""
    if not name:
        return {}, {}
    stack = target.stack()
    for function in stack.functions if stack else ():
        if function.name == name:
            return dict(function.labels), dict(function.annotations)
    raise CommandFailed(
        f"There is no function {name!r} in {stack.file if stack else 'a stack file here'}.", "Name the file with -f."
    )


@click.command(
    "fit-arrivals",
    cls=Command,
    examples="""
    gnomon fit-arrivals twitter_may25_1s.csv.gz --start 19h --duration 1h
    gnomon fit-arrivals stamps.txt --out map.json
    gnomon fit-arrivals run.jsonl --json
    """,
)
@click.argument("file", type=FILE)
@click.option("--column", help="Function of a trace with several; default all together.")
@click.option("--start", type=Duration(), default=0.0, metavar="DURATION", help="Beginning of the stretch in the file.")
@click.option("--duration", type=Duration(), default=None, metavar="DURATION", help="Length of the stretch; default to the end.")
@click.option("--out", type=NewFile(), default=None, help="Write the MAP as JSON, for `gnomon predict --map`.")
@json_option
def fit_arrivals(
    *, file: Path, column: str | None, start: float, duration: float | None, out: Path | None, as_json: bool
) -> None:
    """Fit a Poisson process, an MMPP or a MAP of up to 8 phases to recorded arrivals.

    FILE holds counts per bin (CSV with t_seconds), one time stamp a line (seconds, since 1970 in s to ns, or dates) or the count
    of a second, a table with a column of times, published traces (Azure's, Mooncake's), JSON, or a run that `gnomon replay`
    recorded; plain or gzipped. The fewest phases that explain the data are chosen.
    """
    fitted = fit_file(file, column, start, duration)
    if as_json:
        print_json(fitted.to_json())
    else:
        _show(fitted)
    if out is not None:
        out.write_text(json.dumps(fitted.process.to_json()) + "\n", encoding="utf-8")
        note(f"Wrote {out}.")


def fit_file(file: Path, column: str | None = None, start_s: float = 0.0, duration_s: float | None = None) -> Fit:
    """The fit of a stretch of a file.

    Raises:
        GnomonError: 400 for what cannot be read or has no rate.

    """
    # These bring numpy, which the other commands do without.
    from gnomon_planner.fit import fit  # noqa: PLC0415
    from gnomon_planner.samples import sample_of_counts, sample_of_times  # noqa: PLC0415
    from gnomon_simulator.arrivals import read_demand, stretch  # noqa: PLC0415
    from gnomon_simulator.traces import Trace  # noqa: PLC0415

    demand = stretch(read_demand(file, column), start_s, duration_s)
    return fit(sample_of_counts(demand.counts, demand.bin_s) if isinstance(demand, Trace) else sample_of_times(demand))


def _show(fitted: Fit) -> None:
    process, misfit = fitted.process, fitted.chosen.misfit
    click.echo(
        f"{fitted.chosen.family}, {process.order} phase{'s' if process.order > 1 else ''}, {process.rate_rps:.5g} requests/s"
    )
    click.echo(f"D0  {_rows(process.D0.tolist())}\nD1  {_rows(process.D1.tolist())}\n")
    rows = [
        [
            name,
            f"{mine.value:.5g}",
            f"± {mine.deviation:.2g}",
            f"{found:.5g}",
            f"{(found - mine.value) / mine.value:+.1%}" if mine.value else "",
        ]
        for name, mine, found in fitted.statistics()
    ]
    print_table(("STATISTIC", "SAMPLE", "", "FIT", "OFF"), rows)
    click.echo("")
    table = [(each.family, each.process.order, f"{each.misfit.total:.2f}") for each in fitted.considered]
    print_table(("CONSIDERED", "PHASES", "MISFIT"), table)
    click.echo(f"\nMisfit {misfit.total:.2f}: how many of the sample's own deviations the fit is off; 1 is chance.")
    for text in fitted.notes:
        note(text)


def _rows(rows: list[list[float]]) -> str:
    return " ; ".join(" ".join(f"{rate:.6g}" for rate in row) for row in rows)
