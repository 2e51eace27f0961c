"""`gnomon fit-arrivals`: from recorded demand to the arrival process that the planner works with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gnomon_cli.command import Command
from gnomon_cli.commands.simulation import FILE
from gnomon_cli.options import Duration, NewFile, json_option
from gnomon_cli.output import note, print_json, print_table

if TYPE_CHECKING:
    from gnomon_planner.fit import Fit


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
@click.option("--column", help="Of a trace with several functions, which one; default all together.")
@click.option("--start", type=Duration(), default=0.0, metavar="DURATION", help="Where in the file to begin.")
@click.option("--duration", type=Duration(), default=None, metavar="DURATION", help="How much of it.")
@click.option("--out", type=NewFile(), default=None, help="Write the MAP as JSON, for `gnomon predict --map`.")
@json_option
def fit_arrivals(
    *, file: Path, column: str | None, start: float, duration: float | None, out: Path | None, as_json: bool
) -> None:
    """Fit a Poisson process, an MMPP or a MAP of up to 8 phases to recorded arrivals.

    FILE holds counts per bin (CSV with t_seconds), one time stamp a line (seconds, since 1970 in s to ns, or dates), a table with
    a column of times, Azure's published traces, JSON, or a run that `gnomon replay` recorded; plain or gzipped. The fewest phases
    that explain the data are chosen.
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
    from gnomon_planner.samples import of_counts, of_times  # noqa: PLC0415
    from gnomon_simulator.arrivals import read_demand, stretch  # noqa: PLC0415
    from gnomon_simulator.traces import Trace  # noqa: PLC0415

    demand = stretch(read_demand(file, column), start_s, duration_s)
    return fit(of_counts(demand.counts, demand.bin_s) if isinstance(demand, Trace) else of_times(demand))


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
