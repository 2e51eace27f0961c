"""How `gnomon plan` says what it found: the plan, the latency it predicts, and why its neighbours lost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gnomon_cli.output import print_json, print_table

if TYPE_CHECKING:
    from gnomon_planner.fit import Fit
    from gnomon_planner.latency import Latency
    from gnomon_planner.optimizer import Landscape
    from gnomon_planner.plans import Choice, Plan

MS_PER_S = 1000.0
PER_MILLION = 1e6
CDF = (1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9)
COLORS = {"cdf": "#0072b2", "slo": "#d55e00"}


def show(
    landscape: Landscape, choice: Choice, losers: Sequence[tuple[str, Plan, str]], latency: Latency, fitted: Fit | None
) -> None:
    """For a person; `fitted` is what the arrivals were read as, None where they were given."""
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


def show_json(
    landscape: Landscape, choice: Choice, losers: Sequence[tuple[str, Plan, str]], latency: Latency, fitted: Fit | None
) -> None:
    """For a program; `fit` is as `gnomon fit-arrivals --json` has it, null where the arrivals were given."""
    print_json(
        {
            "failed": choice.failed,
            "percentile": landscape.percent,
            "plan": _document(choice.plan),
            "percentiles_ms": {f"{percent:g}": latency.percentile(percent) * MS_PER_S for percent in CDF},
            "neighbours": [{"direction": word, "why": why} | _document(other) for word, other, why in losers],
            "front": [_document(plan) for plan in landscape.front()],
            "arrivals": landscape.process.to_json(),
            "fit": None if fitted is None else fitted.to_json(),
        }
    )


def why_not(choice: Choice, other: Plan, slo_s: float | None, budget_usd: float | None, percent: float) -> str:
    """In what another plan is worse than the chosen one."""
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


def plot(file: Path, latency: Latency, choice: Choice, slo_s: float | None, percent: float) -> None:
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
    figure.savefig(file, dpi=150)
    plt.close(figure)


def _document(plan: Plan) -> dict[str, Any]:
    """`timeout_ms` is null where a batch waits until it is full: JSON has no word for what never ends."""
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
