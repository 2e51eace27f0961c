"""The commands `gnomon simulate` and `gnomon replay`, as plain functions; the command line only fills in their options.

Each prints its result (a table, or JSON) and returns an exit code: 0, or 1 when the run says that something is wrong (an answer
that was another request's, a request that was never sent). Wrong options raise `GnomonError`, which says what to do.

A long run shows its progress on stderr: a bar on a terminal, a line every few seconds elsewhere.

    simulate [##########..............]  41 %   9 of 23 h   12 s, about 17 s left
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TextIO

from gnomon_autoscaler.registry import SCALING
from gnomon_core.errors import bad_request
from gnomon_core.policy_registry import refuse_strays
from gnomon_core.profiles import Network
from gnomon_core.settings import Settings, read_settings
from gnomon_gateway.scheduling.registry import SCHEDULING
from gnomon_simulator import arrivals
from gnomon_simulator.arrivals import read_demand, stretch
from gnomon_simulator.events import stream
from gnomon_simulator.profiles import Noise, Profile, constant, read_profile
from gnomon_simulator.replay import Plan, Target, replay_apart
from gnomon_simulator.replay_report import Outcome, Token
from gnomon_simulator.results import table
from gnomon_simulator.simulated_platform import NodePlan
from gnomon_simulator.simulation import FunctionPlan
from gnomon_simulator.simulation import simulate as run_simulation
from gnomon_simulator.traces import Trace

QUIET_S = 2.0
TERMINAL_S = 0.2
LINES_S = 10.0
CELLS = 24
MINUTE_S, HOUR_S = 60.0, 3600.0


@dataclass(frozen=True, slots=True)
class ArrivalOptions:
    """The source of arrivals: exactly one of `trace`, `record`, `poisson_rps` and `rate_rps`.

    `function` names a column of a per-function trace. `start_s` and `duration_s` choose a stretch of a trace or record; a rate
    needs a duration. `scale` multiplies a trace's counts or a rate.
    """

    trace: Path | None = None
    record: Path | None = None
    poisson_rps: float | None = None
    rate_rps: float | None = None
    function: str | None = None
    start_s: float = 0.0
    duration_s: float | None = None
    scale: float = 1.0
    seed: int = 1

    def times_s(self) -> Sequence[float]:
        """The arrivals, from second 0.

        Raises:
            GnomonError: 400 for none or several sources, or one that cannot be read or is empty.

        """
        sources = (self.trace, self.record, self.poisson_rps, self.rate_rps)
        if sum(source is not None for source in sources) != 1:
            raise bad_request(
                "bad_arrivals", "Arrivals need exactly one source.", "Name a trace, a record, a Poisson or a constant rate."
            )
        if self.scale <= 0:
            raise bad_request("bad_arrivals", f"A scale of {self.scale} leaves no arrivals.", "Use a factor above 0.")
        times_s = self._times_s()
        if not times_s:
            raise bad_request("bad_arrivals", "There are no arrivals in this stretch.", "Choose a longer or busier stretch.")
        return times_s

    def _times_s(self) -> Sequence[float]:
        if self.trace is not None:
            demand = stretch(read_demand(self.trace, self.function), self.start_s, self.duration_s)
            if isinstance(demand, Trace):
                return arrivals.from_trace(demand.scaled(self.scale), stream(self.seed, "arrivals"))
            return self._unscaled(demand)
        if self.record is not None:
            return self._unscaled(arrivals.selected(arrivals.recorded(self.record), self.start_s, self.duration_s))
        if self.duration_s is None:
            raise bad_request("bad_arrivals", "A rate needs a duration.", "Give the duration.")
        if self.poisson_rps is not None:
            return arrivals.poisson(self.poisson_rps * self.scale, self.duration_s, stream(self.seed, "arrivals"))
        assert self.rate_rps is not None
        return arrivals.constant(self.rate_rps * self.scale, self.duration_s)

    def _unscaled(self, times_s: list[float]) -> list[float]:
        """Recorded times in seconds, ascending."""
        if self.scale != 1.0:
            raise bad_request(
                "bad_arrivals", "Recorded arrival times cannot be scaled.", "Leave the scale out, or use counts per bin."
            )
        if not all(map(math.isfinite, times_s)):
            raise bad_request("bad_arrivals", "A time is NaN or infinite.", "Give finite times in seconds.")
        return sorted(times_s)


@dataclass(frozen=True, slots=True)
class SimulateOptions:
    """A function on a simulated cluster.

    `labels` and `annotations` are those of a deployment (`gnomon/autoscaler`, `com.openfaas.scale.max` …). The instances' latency
    comes from a `profile` or, without one, is `service_s` a request; cores that a profile has not are unknown unless
    `serial_fraction` declares them (`gnomon_core.profiles`). `network_gbps` and `network_rtt_ms` declare what lies
    between the nodes; without them it is what the profile says. `pool` and `reserved_cores` are each node's, as `gnomon serve`
    has them. `schedulers` runs the same arrivals once for each. `policies` are those of installed packages that may be named.
    """

    arrivals: ArrivalOptions
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    profile: Path | None = None
    service_s: float | None = None
    serial_fraction: float | None = None
    load_s: float | None = None
    noise: Noise | None = None
    knowledge: str = "profiled"
    nodes: int = 1
    node_cores: int = 16
    pool: int = 1
    reserved_cores: float = 0.0
    network_gbps: float | None = None
    network_rtt_ms: float = 0.0
    warm: int = 0
    schedulers: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()
    requests: Path | None = None
    json: bool = False


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """Load on a running system. `record` is written when the run is over; `processes` share the load."""

    arrivals: ArrivalOptions
    target: Target
    deadline_s: float = 30.0
    max_connections: int = 1024
    processes: int = 1
    record: Path | None = None
    json: bool = False


def simulate(options: SimulateOptions, out: TextIO | None = None, begun: Callable[[], None] | None = None) -> int:
    """Run the simulation and print its figures; the decisions are in the JSON. `begun` is called before the run starts."""
    settings = read_settings(options.labels, options.annotations)
    profile = _networked(_profile(options, settings), options)
    times_s = options.arrivals.times_s()
    node = NodePlan("node", options.node_cores, reserved_cores=options.reserved_cores, pool=options.pool)
    nodes = [replace(node, name=f"node-{number}") for number in range(1, options.nodes + 1)]
    if begun is not None:
        begun()
    results = []
    scaling, scheduling = SCALING.with_named(options.policies), SCHEDULING.with_named(options.policies)
    refuse_strays(settings, scaling, scheduling)
    for scheduler in options.schedulers or (settings.scheduler,):
        chosen = replace(settings, scheduler=scheduler)
        plan = FunctionPlan(
            "function", chosen, profile, times_s, options.knowledge, options.warm, policies=scaling, schedulers=scheduling
        )
        progress = Progress(f"simulate {settings.autoscaler}")
        results.append(run_simulation([plan], nodes, options.arrivals.seed, watch=progress.at)["function"])
        progress.end()
    shown = json.dumps([result.summary() for result in results], indent=2) if options.json else table(results)
    print(shown, file=out or sys.stdout, flush=True)
    if options.requests is not None:
        results[-1].write_requests(options.requests)
    return 0


def replay(options: ReplayOptions, out: TextIO | None = None, begun: Callable[[int, float], None] | None = None) -> int:
    """Replay the load and print a report; `begun` is called with the number of requests and the length before the run starts."""
    times_s = options.arrivals.times_s()
    if begun is not None:
        begun(len(times_s), times_s[-1])
    plan = Plan(times_s, options.deadline_s, options.max_connections)
    report = replay_apart(plan, options.target, options.processes)
    shown = json.dumps(report.summary(), indent=2) if options.json else report.table()
    print(shown, file=out or sys.stdout, flush=True)
    if options.record is not None:
        report.write_record(options.record)
    rows = report.samples
    return 1 if Token.WRONG in rows.token or Outcome.UNSENT in rows.outcome else 0


def _networked(profile: Profile, options: SimulateOptions) -> Profile:
    """The profile with the declared network between the nodes."""
    if options.network_gbps is None:
        return profile
    if profile.model is None:
        raise bad_request("bad_network", "Only Shadows use the network.", "Name a model's profile, or leave the network out.")
    network = Network.of(options.network_gbps, options.network_rtt_ms, profile.model.network)
    return replace(profile, model=replace(profile.model, network=network))


def _profile(options: SimulateOptions, settings: Settings) -> Profile:
    if (options.profile is None) == (options.service_s is None):
        raise bad_request("bad_profile", "An instance's speed needs one source.", "Name either a profile or a time per request.")
    if options.profile is not None:
        profile = read_profile(options.profile, settings.weight_mode)
        if options.serial_fraction is not None:
            profile = profile.extrapolated(options.serial_fraction)
    else:
        assert options.service_s is not None
        if options.serial_fraction is not None:
            raise bad_request(
                "bad_profile",
                "A serial fraction needs a profile: a time per request holds for one number of cores.",
                "Name a profile, or leave the serial fraction out.",
            )
        if options.service_s <= 0:
            raise bad_request(
                "bad_profile", f"A time per request of {options.service_s} s is not positive.", "Use a time above 0 s."
            )
        profile = constant("function", options.service_s, cores=settings.cores)
    load_s = profile.load_s if options.load_s is None else options.load_s
    return replace(profile, load_s=load_s, noise=options.noise or profile.noise)


class Progress:
    """The progress of one run; `unit` says what is counted, seconds of virtual time where it is empty."""

    def __init__(self, name: str, unit: str = "", out: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._name, self._unit, self._clock = name, unit, clock
        self._out = sys.stderr if out is None else out
        self._every_s = TERMINAL_S if self._out.isatty() else LINES_S
        self._begun_s = clock()
        self._next_s = self._begun_s + max(QUIET_S, self._every_s)
        self._shown = False

    def at(self, done: float, total: float) -> None:
        """Report `done` of `total`; rate-limited to one line an interval."""
        now_s = self._clock()
        if now_s < self._next_s or total <= 0.0:
            return
        self._next_s, self._shown = now_s + self._every_s, True
        text = progress_text(self._name, self._unit, done, total, now_s - self._begun_s)
        self._out.write(f"\r\x1b[K{text}" if self._out.isatty() else f"{text}\n")
        self._out.flush()

    def end(self) -> None:
        """Clear a terminal's bar at the end of the run; lines elsewhere stay."""
        if self._shown and self._out.isatty():
            self._out.write("\r\x1b[K")
            self._out.flush()


def progress_text(name: str, unit: str, done: float, total: float, spent_s: float) -> str:
    """Format the progress line after `spent_s` seconds."""
    share = min(1.0, done / total)
    bar = "#" * int(share * CELLS)
    remaining = f", about {span(spent_s * (1 - share) / share)} left" if share > 0.0 else ""
    position = f"{done:g} of {total:g} {unit}" if unit else f"{span(done)} of {span(total)} simulated"
    return f"{name} [{bar.ljust(CELLS, '.')}] {share:4.0%}   {position}   {span(spent_s)}{remaining}"


def span(seconds: float) -> str:
    """Format a duration in seconds, minutes or hours: 12 s, 3.4 min, 23.5 h."""
    if seconds < 2 * MINUTE_S:
        return f"{seconds:.0f} s"
    return f"{seconds / MINUTE_S:.1f} min" if seconds < 2 * HOUR_S else f"{seconds / HOUR_S:.1f} h"
