"""The figures as pictures: one of four panels for each model, and one of the appendix for all.

matplotlib is imported in this module only, without a display. It is an extra: serving needs no pictures.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gnomon_core.errors import GnomonError
from gnomon_core.packaging import how_to_install
from gnomon_core.profiles import ModelProfile
from gnomon_profiler.figures.tables import (
    APPENDIX,
    LARGER_BATCHES,
    correlation,
    increases,
    offloaded,
    output_increases,
    sensitivities,
    short_name,
)

DOTS_PER_INCH = 120
"""Twice the pixels at which a page shows them, for displays of that density."""
COLOURS = 64
_PANEL_INCHES = (5.6, 3.4)
_COLOURS = ("#1f6f8b", "#e07a2f", "#6a8532")


def draw(profiles: Sequence[ModelProfile], folder: Path, cores: int = 1) -> list[Path]:
    """Write `MODEL.png` for each model and `anti-correlation.png` for all.

    Raises:
        GnomonError: 501 `matplotlib_missing`.

    """
    pyplot = _pyplot()
    folder.mkdir(parents=True, exist_ok=True)
    columns = min(3, len(profiles))
    grid = (-(-len(profiles) // columns), columns)
    models = [
        _picture(pyplot, folder / f"{short_name(profile)}.png", partial(_panels, profile=profile, cores=cores), (2, 2))
        for profile in profiles
    ]
    appendix = partial(_scatters, profiles=profiles, cores=cores)
    return [*models, _picture(pyplot, folder / f"{APPENDIX}.png", appendix, grid)]


def _pyplot() -> Any:
    try:
        matplotlib = importlib.import_module("matplotlib")
    except ImportError:
        raise GnomonError(
            501, "matplotlib_missing", "Pictures need matplotlib, which is not installed.", how_to_install("figures")
        ) from None
    matplotlib.use("Agg")
    return importlib.import_module("matplotlib.pyplot")


def _picture(pyplot: Any, path: Path, fill: Callable[[list[Any]], None], grid: tuple[int, int]) -> Path:
    rows, columns = grid
    figure, axes = pyplot.subplots(rows, columns, squeeze=False, figsize=(_PANEL_INCHES[0] * columns, _PANEL_INCHES[1] * rows))
    fill(list(axes.flat))
    for axis in axes.flat:
        axis.xaxis.get_major_locator().set_params(integer=axis.get_xlabel() == "block")
    figure.tight_layout()
    with io.BytesIO() as drawn:
        figure.savefig(drawn, format="png", dpi=DOTS_PER_INCH)
        # A palette: the few colours of a chart take a third of the bytes. Pillow comes with matplotlib.
        importlib.import_module("PIL.Image").open(drawn).convert("RGB").quantize(COLOURS).save(path, optimize=True)
    pyplot.close(figure)
    return path


def _panels(axes: list[Any], profile: ModelProfile, cores: int) -> None:
    title = f"{short_name(profile)}, {cores} core{'s' if cores > 1 else ''}"
    for axis, panel, name in zip(
        axes,
        (_sensitivity, _distribution, _offloading, _outputs),
        ("each block, b = 2 to 4", "CDF over blocks", "blocks offloaded", "output of each block"),
        strict=True,
    ):
        panel(axis, profile, cores)
        axis.set_title(f"{title}: {name}", fontsize=10)


def _sensitivity(axis: Any, profile: ModelProfile, cores: int) -> None:
    rows = sensitivities(profile, cores)
    numbers = [row.number for row in rows]
    axis.bar(numbers, [1000 * row.increase_s for row in rows], color=_COLOURS[0], label="latency increase (ms)")
    axis.set(xlabel="block", ylabel="latency increase (ms)")
    other = axis.twinx()
    other.plot(
        numbers, [row.parameter_bytes / 1e6 for row in rows], "o-", color=_COLOURS[1], markersize=3, label="parameters (MB)"
    )
    other.plot(numbers, [1000 * row.load_s for row in rows], "s--", color=_COLOURS[2], markersize=3, label="private load (ms)")
    other.set_ylabel("MB, ms")
    _legend(axis, other)


def _distribution(axis: Any, profile: ModelProfile, cores: int) -> None:
    rows = increases(profile, cores)
    for batch, colour in zip(LARGER_BATCHES, _COLOURS, strict=True):
        points = [(1000 * row.increase_s, row.share_of_blocks) for row in rows if row.to_batch == batch]
        if not points:
            continue  # not measured
        axis.step(*zip(*points, strict=True), where="post", color=colour, label=f"b = 2 to {batch}")
    axis.set(xlabel="latency increase (ms)", ylabel="share of blocks", ylim=(0, 1.02))
    _legend(axis)


def _offloading(axis: Any, profile: ModelProfile, cores: int) -> None:
    rows = offloaded(profile, cores)
    shares = [100 * row.share_of_blocks for row in rows]
    axis.plot(shares, [1000 * row.ideal_s for row in rows], color=_COLOURS[0], label="without hand-overs, as in the paper")
    axis.plot(shares, [1000 * row.paired_s for row in rows], color=_COLOURS[1], label="Eq. 6, with hand-overs")
    axis.set(xlabel="blocks offloaded (%)", ylabel="latency increase (ms)")
    other = axis.twinx()
    other.plot(shares, [100 * row.share_of_weights for row in rows], ":", color=_COLOURS[2], label="weights (%)")
    other.set(ylabel="weights in the Shadow (%)", ylim=(0, 102))
    _legend(axis, other)


def _outputs(axis: Any, profile: ModelProfile, _cores: int) -> None:
    rows = list(output_increases(profile))
    for batch, colour in zip(reversed(LARGER_BATCHES), reversed(_COLOURS), strict=True):
        points = [(row.number, row.increase_bytes / 1e6) for row in rows if row.to_batch == batch]
        axis.bar(*zip(*points, strict=True), color=colour, label=f"b = 2 to {batch}")
    axis.set(xlabel="block", ylabel="output increase (MB)")
    _legend(axis)


def _legend(*axes: Any) -> None:
    """Draw a shared legend below the panel: inside it would cover data."""
    handles = [pair for axis in axes for pair in zip(*axis.get_legend_handles_labels(), strict=True)]
    options = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.18), "ncols": max(1, len(handles)), "frameon": False}
    axes[0].legend(*zip(*handles, strict=True), fontsize=7, **options)


def _scatters(axes: list[Any], profiles: Sequence[ModelProfile], cores: int) -> None:
    for axis, profile in zip(axes, profiles, strict=False):
        rows, correlations = sensitivities(profile, cores), correlation(profile, cores)
        axis.scatter([row.parameter_bytes / 1e6 for row in rows], [1000 * row.increase_s for row in rows], s=9, color=_COLOURS[0])
        axis.set(xlabel="parameters of a block (MB)", ylabel="increase, b = 2 to 4 (ms)")
        axis.set_title(
            f"{short_name(profile)}: Pearson {correlations.pearson:.2f}, Spearman {correlations.spearman:.2f}", fontsize=10
        )
    for axis in axes[len(profiles) :]:
        axis.set_axis_off()
