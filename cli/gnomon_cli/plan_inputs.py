"""What `gnomon plan` chooses from: how requests arrive, which sizes of instances there are, and what they cost."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnomon_cli.errors import WrongCommand
from gnomon_cli.output import note
from gnomon_core.lambda_pricing import LARGEST_MB, MB_PER_CORE
from gnomon_core.units import MEGABYTE

if TYPE_CHECKING:  # numpy takes longer to import than help may take
    from gnomon_planner.plans import Size

MS_PER_S = 1000.0
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
    from gnomon_planner.service_time import of_ratios  # noqa: PLC0415

    document = _read(file)
    try:
        if "measured" in document:
            runs = [[float(one) for one in cell["runs_s"]] for cell in document.get("cells", ())]
            sizes = _modelled(document["measured"], runs, max_batch)
            fitting = tuple(size for size in sizes if not on_lambda or size.memory_mb <= LARGEST_MB)
            if not fitting:
                raise WrongCommand(
                    f"{file}: no measured size fits into an instance of Lambda.", "--platform held has larger ones."
                )
            return fitting
        return tuple(
            Size(
                _name(float(one["memory_mb"]), one.get("cores")),
                float(one["memory_mb"]),
                float(one.get("cores", float(one["memory_mb"]) / MB_PER_CORE)),
                tuple(value / MS_PER_S for value in _numbers(one["service_ms"]))[:max_batch],
                of_ratios(_numbers(one.get("ratios", [1.0]))),
            )
            for one in document["sizes"]
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
    from gnomon_planner.service_time import of_range  # noqa: PLC0415

    try:
        profile = ModelProfile.from_json(_read(file))
    except ValueError as error:
        raise WrongCommand(f"{file}: {error}.", "`gnomon models profile` writes profiles.") from None
    held_mb = profile.memory_bytes(profile.layers.parameter_bytes()) / MEGABYTE
    found = []
    for cores, row in sorted(profile.whole.seconds.items()):
        memory_mb = cores * MB_PER_CORE if on_lambda else held_mb
        if on_lambda and not held_mb <= memory_mb <= LARGEST_MB:
            continue
        seconds = (profile.whole.at(cores, batch) for batch in range(1, min(max_batch, max(row)) + 1))
        times = tuple(one for one in seconds if one is not None)
        spreads = [profile.spread[cell] for batch in row if (cell := f"{cores}/{batch}") in profile.spread]
        ratios = of_range(sum(spreads) / max(1, len(spreads)))
        found.append(Size(_name(memory_mb, cores), memory_mb, cores, times, ratios))
    if not found:
        raise WrongCommand(f"{file}: no measured number of cores fits into an instance of Lambda.")
    return tuple(found)


def single_size(service_ms: tuple[float, ...], max_batch: int, memory_mb: float, cores: float) -> tuple[Size, ...]:
    """One size; a single time holds for all batches."""
    from gnomon_planner.plans import Size  # noqa: PLC0415

    times = service_ms * max_batch if len(service_ms) == 1 else service_ms
    return (Size(_name(memory_mb, cores), memory_mb, cores, tuple(one / MS_PER_S for one in times)[:max_batch]),)


def timeouts_of(text: str) -> tuple[float, ...]:
    """Seconds, of `first:last:step` or a list of milliseconds.

    Raises:
        WrongCommand: it is neither.

    """
    try:
        if ":" in text:
            first, last, step = (float(part) for part in text.split(":"))
            count = math.floor((last - first) / step + 1e-9) + 1 if step > 0.0 else 0
            found = [first + number * step for number in range(min(count, MOST_TIMEOUTS + 1))]
        else:
            found = sorted({float(part) for part in text.split(",")})
    except (ValueError, OverflowError):
        raise WrongCommand(f"{text!r} names no timeouts.", "Write 10:500:10 or 5,10,20, in milliseconds.") from None
    if not 0 < len(found) <= MOST_TIMEOUTS:
        raise WrongCommand(f"{text!r} names no timeouts, or more than {MOST_TIMEOUTS}.")
    return tuple(one / MS_PER_S for one in found)


def _modelled(cells: Sequence[Mapping[str, Any]], runs: Sequence[Sequence[float]], max_batch: int) -> tuple[Size, ...]:
    from gnomon_planner.plans import Size  # noqa: PLC0415
    from gnomon_planner.service_time import (  # noqa: PLC0415
        Measured,
        fitted,
        of_runs,
    )

    by_cores = all("cores" in one for one in cells)
    key, whole = ("cores", 1.0) if by_cores else ("memory_mb", MB_PER_CORE)
    points = [Measured(float(one[key]), int(one["batch"]), float(one["ms"]) / MS_PER_S) for one in cells]
    model = fitted(points, whole=whole)
    note(f"Service times by {len(points)} cells: {model.told}.")
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
    ratios = of_runs(runs)
    found = []
    for one in sorted(between | {point.size for point in points}):
        cores, memory_mb = (one, one * MB_PER_CORE) if by_cores else (one / MB_PER_CORE, one)
        times = tuple(model.seconds(one, max(batch, least)) for batch in range(1, min(max_batch, most) + 1))
        found.append(Size(_name(memory_mb, cores if by_cores else None), memory_mb, cores, times, ratios))
    return tuple(found)


def _name(memory_mb: float, cores: object) -> str:
    return f"{memory_mb:.0f} MB" if cores is None else f"{cores:g} core{'' if cores == 1 else 's'}, {memory_mb:.0f} MB"


def _numbers(listed: object) -> list[float]:
    if not isinstance(listed, list):
        raise TypeError(f"{listed!r} is no list of numbers")
    return [float(one) for one in listed]


def _read(file: Path) -> Mapping[str, Any]:
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise WrongCommand(f"{file} is no JSON: {error}.") from None
    if not isinstance(document, Mapping):
        raise WrongCommand(f"{file} holds no JSON object.", FORMS)
    return document
