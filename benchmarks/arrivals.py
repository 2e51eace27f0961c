"""The quality of fits to arrivals: their time, known processes recovered, and the buffer's percentiles on hours of Twitter.

    python -m benchmarks.arrivals [--quick]

**Known processes.** Six MMPP(2)s, drawn with several seeds, 200,000 arrivals each. Rate, SCV and ρ1 of the fit are compared
with those of the sample, and with the true ones where the sample itself deviates by less than 2 % on average: nothing can be
nearer than its data.

**Halves of an hour.** Each full hour of the trace is cut into blocks of 60 s that go to two halves in turn. A MAP fitted to the
counts of one half predicts P50, P95 and P99 of the buffer (exact distribution) for six plans; the other half is sent through
the buffer event by event, its requests uniform within their seconds. The same with the first 30 minutes against the last 30,
beside the drift of the rate, which no fit of the first half can know.

**Changes.** The test runs over the whole day against a fit that is renewed at each alarm and each hour; false alarms are counted
on Poisson arrivals of Twitter's mean rate.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.programs import Pace, start, step
from benchmarks.report import Figure, measured, write
from benchmarks.simulation.markov import markov_arrivals
from gnomon_planner.buffer import BufferPlan
from gnomon_planner.changes import ChangeRule, CusumState, Reference, detect_change
from gnomon_planner.fit import fit
from gnomon_planner.latency import ExactLatency, ServiceTimes
from gnomon_planner.maps import Map
from gnomon_planner.samples import sample_of_counts, sample_of_times
from gnomon_planner.validation import replay_buffer
from gnomon_simulator.arrivals import from_trace
from gnomon_simulator.events import stream
from gnomon_simulator.traces import Trace, read_trace

Vector = npt.NDArray[np.float64]
TRACE = Path(__file__).parent / "traces" / "twitter_may25_1s.csv.gz"
HOUR, BLOCK = 3600, 60
BUSY_HOUR_S = 74_220.0
KNOWN = {
    "10 | 200": Map.mmpp2((10.0, 200.0), (1.0, 1.0)),
    "10 | 120": Map.mmpp2((10.0, 120.0), (5.0, 5.0)),
    "0 | 100": Map.mmpp2((0.0, 100.0), (20.0, 30.0)),
    "40 | 60": Map.mmpp2((40.0, 60.0), (0.5, 0.5)),
    "5 | 300 rare": Map.mmpp2((5.0, 300.0), (0.5, 10.0)),
    "30 | 90": Map.mmpp2((30.0, 90.0), (10.0, 3.0)),
}
# B, T in s; a batch of k takes 10 + 8k ms.
PLANS = ((4, 0.05), (8, 0.1), (8, 0.25), (16, 0.2), (16, 0.5), (32, 1.0))
SERVICE_S = tuple(0.010 + 0.008 * size for size in range(1, 33))
PERCENTS = (50.0, 95.0, 99.0)
FIT_GOAL_S, MATCH_GOAL = 1.0, 0.05


def fit_times(pace: Pace) -> list[Figure]:
    """The time of fitting an hour, as time stamps and as counts."""
    hour = read_trace(TRACE).slice(BUSY_HOUR_S, HOUR)
    stamps = from_trace(hour, stream(1, "arrivals"))
    kinds: dict[str, Callable[[], object]] = {
        "stamps": lambda: fit(sample_of_times(stamps)),
        "counts": lambda: fit(sample_of_counts(hour.counts, hour.bin_s)),
    }
    figures = []
    for kind, work in kinds.items():
        cores, walls = [], []
        for _ in range(pace.repeats):
            begun_s, used_s = time.perf_counter(), time.process_time()
            work()
            walls.append(time.perf_counter() - begun_s)
            cores.append(time.process_time() - used_s)
        said = f"{len(stamps)} arrivals of Twitter, statistics and fit"
        figures.append(measured(f"fit_hour_{kind}_core", cores, "s", at_most=FIT_GOAL_S, detail=f"{said}, time on one core"))
        figures.append(measured(f"fit_hour_{kind}_wall", walls, "s", detail=f"{said}, beside whatever else ran"))
    return figures


def known_processes(pace: Pace) -> list[Figure]:
    """The errors of fits against their samples, and against the true process where a sample determines it."""
    from_sample: dict[str, list[float]] = {}
    figures, phases = [], []
    names = ("rate", "scv", "lag1")
    for name, process in KNOWN.items():
        truth = np.array([process.rate_rps, process.scv, process.autocorrelation(1)])
        samples, fits = [], []
        for seed in range(pace.repeats):
            sample = sample_of_times(markov_arrivals(process, 200_000, np.random.default_rng(seed)))
            assert sample.gaps is not None
            found = fit(sample).process
            samples.append([sample.rate_rps, sample.gaps.scv.value, sample.gaps.correlations[0].value])
            fits.append([found.rate_rps, found.scv, found.autocorrelation(1)])
            phases.append(found.order)
        of_samples, of_fits = np.array(samples), np.array(fits)
        own = of_samples.std(axis=0, ddof=1) / truth
        off_sample = np.abs(of_fits / of_samples - 1.0)
        off_truth = np.abs(of_fits / truth - 1.0).mean(axis=0)
        for place, statistic in enumerate(names):
            from_sample.setdefault(statistic, []).extend(off_sample[:, place].tolist())
            if own[place] < 0.02:
                said = f"λ = {name}: mean error against the truth; the sample's own deviation is {own[place]:.2%}"
                figures.append(_worst(f"known_{name}_{statistic}", off_truth[place], said))
    for statistic, offs in from_sample.items():
        figures.insert(0, _worst(f"match_sample_{statistic}", max(offs), f"worst of {len(offs)} fits against their samples"))
    said = f"phases of the {len(phases)} fits: " + ", ".join(f"{phases.count(order)} × {order}" for order in sorted(set(phases)))
    return [*figures, Figure("known_two_phases", phases.count(2) / len(phases), "of the fits", detail=said)]


def halves(pace: Pace) -> list[Figure]:
    """Each hour's halves against each other, both ways of halving."""
    trace = read_trace(TRACE)
    counts = np.array(trace.counts)
    hours = [counts[begin : begin + HOUR] for begin in range(0, len(counts) - HOUR + 1, HOUR)]
    interleaved, drifting, drifts, phases = [], [], [], []
    for number, hour in enumerate(hours[:3] if pace.quick else hours):
        blocks = hour.reshape(-1, BLOCK)
        process, errors = predicted(blocks[::2].reshape(-1), blocks[1::2].reshape(-1), number)
        interleaved.append(errors)
        phases.append(process.order)
        first, second = hour[: HOUR // 2], hour[HOUR // 2 :]
        drifting.append(predicted(first, second, number)[1])
        drifts.append(float(second.mean() / first.mean() - 1.0))
    both = np.array(interleaved), np.array(drifting)
    figures = []
    for place, percent in enumerate(PERCENTS):
        worst = np.abs(both[0][:, :, place])
        hour, plan = np.unravel_index(int(np.argmax(worst)), worst.shape)
        said = f"worst of {worst.size} (hour {hour}, B = {PLANS[plan][0]}, T = {PLANS[plan][1]} s), mean {worst.mean():.2%}"
        figures.append(_worst(f"interleaved_p{percent:g}", float(worst.max()), said))
    figures.append(Figure("interleaved_phases", statistics.fmean(phases), "phases", detail=f"of the hours' fits: {phases}"))
    for place, percent in enumerate(PERCENTS):
        off = np.abs(both[1][:, :, place])
        said = f"worst; mean {off.mean():.2%}; the rate drifts by {_range(drifts)} between the halves"
        figures.append(Figure(f"first_against_second_p{percent:g}", float(off.max()), "of the latency", detail=said))
    worst_drift = max(drifts, key=abs)
    said = "; ".join(
        f"hour {n}: rate {drift:+.1%}, worst percentile {np.abs(both[1][n]).max():.1%}" for n, drift in enumerate(drifts)
    )
    return [*figures, Figure("first_against_second_drift", worst_drift, "of the rate", detail=said)]


def predicted(known: Vector, unknown: Vector, seed: int) -> tuple[Map, list[list[float]]]:
    """The relative error of each percentile for each plan, of the MAP of one stretch of counts on another."""
    process = fit(sample_of_counts(known, 1.0)).process
    times = from_trace(Trace(1.0, tuple(unknown.tolist())), stream(seed, "arrivals"))
    errors = []
    for batch, timeout_s in PLANS:
        latency = ExactLatency(process, BufferPlan(batch, timeout_s), ServiceTimes.fixed(SERVICE_S[:batch]))
        happened = np.quantile(replay_buffer(times, batch, timeout_s).latency_s(SERVICE_S), np.array(PERCENTS) / 100.0)
        errors.append([latency.percentile(percent) / real - 1.0 for percent, real in zip(PERCENTS, happened, strict=True)])
    return process, errors


def changes(pace: Pace) -> list[Figure]:
    """False alarms, delays, and what the test says of the Twitter day."""
    rule, rate, days = ChangeRule(), 52.0, 3 if pace.quick else 20
    rng = np.random.default_rng(1)
    false = len(list(alarms(rng.poisson(rate, days * 86_400), Reference(rate), rule)))
    said = f"{false} on {days} days of Poisson arrivals at {rate:g}/s; asked for: one a day"
    figures = [Figure("false_alarms", false / days, "a day", 1.0, "<=", "met" if false <= days else "missed", said)]
    for change in (0.1, 0.2, 0.5, -0.2):
        runs = (rng.poisson(rate * (1.0 + change), 3600) for _ in range(20 * pace.repeats))
        delays = [next(alarms(counts, Reference(rate), rule)) for counts in runs]
        stated_s = Reference(rate).delay_s(rule, change)
        said = f"after the rate became {change:+.0%}; stated {stated_s:.1f} s"
        figures.append(Figure(f"delay_{change:+.0%}", statistics.fmean(delays), "s", detail=said))
    return [*figures, twitter_alarms(rule)]


def alarms(counts: npt.NDArray[np.int64], reference: Reference, rule: ChangeRule) -> Iterator[float]:
    """The second of each alarm; the test begins anew after it."""
    evidence = CusumState()
    for second, count in enumerate(counts.tolist(), start=1):
        evidence, change = detect_change(evidence, reference, rule, count, bin_s=1.0, now_s=float(second))
        if change is not None:
            yield float(second)
            evidence = CusumState()


def twitter_alarms(rule: ChangeRule) -> Figure:
    """The number of refits in the day, on the regime since the last alarm or the last hour."""
    counts = read_trace(TRACE).counts
    evidence, found, regime_s, fitted_s = CusumState(), 0, 0, 0
    reference: Reference | None = None
    for second, count in enumerate(counts, start=1):
        if reference is None or second - fitted_s >= HOUR:
            if second - regime_s < BLOCK:
                continue
            sample = sample_of_counts(counts[max(regime_s, second - HOUR) : second], 1.0)
            reference, evidence, fitted_s = Reference.of(fit(sample).process, rule), CusumState(), second
            continue
        evidence, change = detect_change(evidence, reference, rule, count, bin_s=1.0, now_s=float(second))
        if change is not None:
            found, regime_s, reference = found + 1, int(change.since_s), None
    hours = len(counts) / HOUR
    said = f"{found} in {hours:.1f} h of Twitter; fitted again on the counts since each change"
    return Figure("twitter_changes", found / hours, "an hour", detail=said)


def _worst(key: str, value: float, said: str) -> Figure:
    return Figure(key, value, "relative", MATCH_GOAL, "<=", "met" if value <= MATCH_GOAL else "missed", said)


def _range(values: list[float]) -> str:
    return f"{min(values):+.1%} to {max(values):+.1%}"


def main(pace: Pace) -> None:
    figures: list[Figure] = []
    for part in (fit_times, known_processes, halves, changes):
        step((part.__doc__ or "").splitlines()[0])
        figures += part(pace)
    write("arrivals", figures, repeats=pace.repeats, packages=("gnomon", "numpy"), folder=pace.results)


if __name__ == "__main__":
    start(main, __doc__)
