"""A model of the repository in, its profile on this machine out."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from gnomon_core.blocks import Layers
from gnomon_core.engines import AUTO, FP32, PROGRAM, REPORT, choose_engine, cpu_arithmetic, read_report
from gnomon_core.errors import GnomonError, bad_request, conflict
from gnomon_core.interfaces import ModelEntry
from gnomon_core.profiles import ModelProfile, profile_name
from gnomon_profiler.child_processes import ChildProcesses
from gnomon_profiler.measuring.assembly import (
    NO_STORED_CELLS,
    Measured,
    ProfileContext,
    ReadyTimes,
    StoredCells,
    assemble,
    difference,
    provenance_of,
    stored_cells,
)
from gnomon_profiler.measuring.cells import TRIES, Plan, Subject
from gnomon_profiler.measuring.session import Journal, Machine, MeasuringProcess, Session, software, this_machine
from gnomon_profiler.measuring.store import ProfileStore

MAX_BATCH = 8
REPEATS = 10


@dataclass(frozen=True, slots=True)
class ProfileOptions:
    """Options of a run: cores (if empty, 1 to all of the machine's), batches, and at least `repeats` runs of each batch.

    A noisy cell is measured up to `tries` times. What a profile of the same model, machine and software has is taken from it,
    and what it has besides stays in it; `afresh`, it is replaced. `engine` is the one that runs the model, as functions name
    it, in a precision; `auto` is the quickest above the accuracy floor. With `most_spread` a profile whose cells vary by more, in
    the middle, is not stored: something else used the machine.
    """

    cores: tuple[int, ...] = ()
    batches: tuple[int, ...] = tuple(range(1, MAX_BATCH + 1))
    repeats: int = REPEATS
    tries: int = TRIES
    afresh: bool = False
    engine: str = AUTO
    precision: str = FP32
    floor: float = 0.0
    most_spread: float | None = None


def profile_model(
    entry: ModelEntry,
    store: ProfileStore,
    options: ProfileOptions,
    progress: Callable[[str], None],
    ready: Callable[[ModelEntry], ReadyTimes] | None = None,
    *,
    processes: ChildProcesses | None = None,
) -> tuple[ModelProfile, Path]:
    """Measure a model and store its profile. The next call with the same `repeats` continues an interrupted one.

    Blocks for minutes, while one of `processes` measures. `ready` asks a platform how long starts take; without it those of bare
    forks are measured.

    Raises:
        GnomonError: 422 `no_layer_blocks` for a model without blocks, 400 `cores_beyond_machine`, 500 `measuring_failed`, 409
            `machine_disturbed` above `most_spread`, 503 `stopping`.

    """
    machine = this_machine()
    plan = plan_for(machine, options)
    subject = subject_of(entry, options.engine, options.precision, options.floor)
    name = profile_name(machine.id, subject.engine.name)
    with MeasuringProcess(background=options.most_spread is not None, processes=processes) as process:
        versions = software(process.hello)
        context = ProfileContext(machine, versions, datetime.now(UTC))
        stored = None if options.afresh else store.get(subject.name, name)
        stored_results = NO_STORED_CELLS if stored is None else _kept(stored, plan, subject, context, progress)
        plan = replace(plan, largest=stored_results.largest_batch)
        journal = Journal(store.journal(subject.name, name), _identity(subject, options, machine, versions))
        results = Session(subject, plan, journal, process, stored_results.cells, progress=progress).run()
    context = replace(context, when=datetime.now(UTC))
    profile = assemble(Measured(subject, plan, results), context, ready(entry) if ready else None, stored_results)
    if (spread := _disturbance(profile)) > (options.most_spread or math.inf):
        journal.remove()
        message = f"{subject.label}: its batches varied by {100 * spread:.0f} % while they were measured; the profile is not kept"
        raise conflict("machine_disturbed", f"{message}.", "Measure on a quiet machine: gnomon models profile NAME")
    path = store.put(subject.name, name, profile)
    journal.remove()
    return profile, path


def _disturbance(profile: ModelProfile) -> float:
    """The relative interquartile range of the batches, in the middle."""
    return statistics.median(profile.spread.values()) if profile.spread else 0.0


def _kept(
    stored: ModelProfile, plan: Plan, subject: Subject, context: ProfileContext, progress: Callable[[str], None]
) -> StoredCells:
    if why := difference(stored, subject.layers, provenance_of(subject, context)):
        progress(f"{subject.label}: its stored profile is not used: {why}")
        return NO_STORED_CELLS
    stored_results = stored_cells(stored).without(plan.cells(), plan.repeats)
    progress(f"{subject.label}: goes on from its profile of {stored_results.source}; --afresh measures all of it again")
    return stored_results


def plan_for(machine: Machine, options: ProfileOptions) -> Plan:
    """The measurement plan for this machine.

    Raises:
        GnomonError: 400 `cores_beyond_machine`.

    """
    cores = options.cores or tuple(range(1, machine.cores + 1))
    if max(cores) > machine.cores:
        raise bad_request(
            "cores_beyond_machine",
            f"This machine has {machine.cores} cores for us; {max(cores)} cannot be measured on it.",
            "Measure on a machine that has them, or read them extrapolated: gnomon models profiles NAME --serial 5",
        )
    return Plan(tuple(sorted(set(cores))), tuple(sorted(set(options.batches))), options.repeats, machine.cpus, options.tries)


def subject_of(entry: ModelEntry, requested: str = PROGRAM, precision: str = FP32, floor: float = 0.0) -> Subject:
    """The model and its blocks, on the engine that a function with these settings has.

    Raises:
        GnomonError: 422 `no_layer_blocks`; 409 `engine_not_offered` for a named engine or precision that the model does not have.

    """
    name = f"{entry.name}@{entry.version}"
    if entry.layers is None:
        raise GnomonError(
            422,
            "no_layer_blocks",
            f"{name} was captured without its layer blocks, and a profile is a table of them.",
            "Capture it again and add it under another version.",
        )
    layers = Layers.from_json(json.loads(entry.layers.read_bytes()))
    report = read_report(entry.files[REPORT]).on_cpu(cpu_arithmetic()) if REPORT in entry.files else None
    engine = choose_engine(requested, entry.files, report, precision, floor)
    if requested not in (AUTO, engine.engine) or precision not in (AUTO, engine.precision):
        shown = requested if precision == FP32 else f"{requested} in {precision}"
        raise conflict("engine_not_offered", f"{name} does not run on {shown}: {engine.shortfall}.", "gnomon models show NAME")
    version = "" if report is None else report.result(engine.name).versions.get(engine.engine, "")
    details = entry.signature.details
    return Subject(name, entry.program, entry.weights, entry.layers, layers, entry.sha256, details, engine, version)


def _identity(subject: Subject, options: ProfileOptions, machine: Machine, versions: Mapping[str, str]) -> dict[str, object]:
    """The identity of a journal's cells. Cores and batches are not part of it: a run that adds some continues the journal."""
    blocks = hashlib.sha256(json.dumps(subject.layers.to_json(), sort_keys=True).encode()).hexdigest()
    return {
        "model": subject.name,
        "program_sha256": subject.layers.program_sha256,
        "weights_sha256": subject.sha256.get("weights.safetensors", ""),
        "blocks_sha256": blocks,
        "machine": str(machine),
        "repeats": options.repeats,
        "torch": versions["torch"],
        "python": versions["python"],
        **({"engine": f"{subject.engine.name} {subject.engine_version}"} if subject.engine.files else {}),
        **({"afresh": True} if options.afresh else {}),
    }


def parse_numbers(text: str) -> tuple[int, ...]:
    """Numbers and ranges of numbers, each above 0.

    Example: "1,2,4-6" gives (1, 2, 4, 5, 6).

    Raises:
        ValueError: it says something else.

    """
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        ends = (first, last or first)
        if not all(end.isdecimal() for end in ends) or not 1 <= int(ends[0]) <= int(ends[1]):
            raise ValueError(f"{part!r} is no number above 0 and no range of them")
        numbers.extend(range(int(ends[0]), int(ends[1]) + 1))
    return tuple(numbers)
