"""Table 6 and section 1: how many variants there are of how many architectures, and what they span."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import cache
from typing import Any

from benchmarks.programs import RESULTS
from benchmarks.reports.report import (
    MUTED,
    SERIES,
    Claim,
    Measured,
    Picture,
    Results,
    Section,
    Table,
    judged,
    picture,
    table,
    unmeasured,
)
from benchmarks.simulation.variant_catalogs import VARIANTS_OF_FAMILY, profiled_variants
from gnomon_core.variants import Variant

COMMAND = "python -m benchmarks.variants"
PAPER_ARCHITECTURES = 22
LOADING, LATENCY, ACCURACY = 18.7, 3700.0, 1.46
"""Section 1: the largest by the least."""
LEAST_ARCHITECTURES = 20
ABOUT = (
    "Variants are generated from registered models: engines × precisions × cores × largest batches, each run on this machine. "
    "EfficientNet-Lite's backbones have their ImageNet weights, the others random ones; accuracies are those of heads on digits, "
    "measured on a validation set, and not the ones of ImageNet. There is neither a GPU nor an Inferentia."
)


@cache
def measured_variants(*, disturbed: bool = True) -> tuple[Variant, ...]:
    """Every variant that was profiled, or those that nothing disturbed; none where the benchmark has not been run."""
    path = RESULTS / "variants.json"
    return profiled_variants(path, disturbed=disturbed) if path.exists() else ()


def section(_: object, __: Results) -> Section:
    """The variants that were profiled here."""
    found, variants = Measured("variants"), measured_variants()
    text = [ABOUT]
    if variants:
        facts = {figure["key"]: figure for figure in found.figures}
        shared = facts["disturbed measurements"]
        text.append(
            f"Measured on {found.document['machine']}, {found.document['measured_at'][:10]}. "
            f"{shared['value']:.0f} % of the measurements have a spread of more than 20 %: other programs disturbed them."
        )
    pictures = (_picture(variants),) if variants else ()
    tables = (_architectures(found, variants),) if variants else ()
    return Section("table6", "Table 6: variants of models", tuple(text), pictures, tables, claims())


def claims() -> tuple[Claim, ...]:
    """Claims on the number of variants that are generated, and on the ranges of section 1."""
    variants = measured_variants()
    paper = sum(VARIANTS_OF_FAMILY.values())
    says = {
        "Table 6, section 6": f"{paper} variants are generated from {PAPER_ARCHITECTURES} architectures.",
        "Section 1, loading": f"Loading takes 590 ms to 11 s: {LOADING:g} ×.",
        "Section 1, latency": f"A single query takes 1.5 ms to 5.7 s: {LATENCY:,.0f} ×.",
        "Section 1, accuracy": f"Accuracies are 56.6 to 82.5 %: {ACCURACY:g} ×.",
    }
    if not variants:
        return tuple(unmeasured(where, say, COMMAND) for where, say in says.items())
    of_count, of_loading, of_latency, of_accuracy = says.items()
    architectures = len({variant.architecture for variant in variants})
    quiet = measured_variants(disturbed=False) or variants
    each, paper_each = len(variants) / architectures, paper / PAPER_ARCHITECTURES
    accuracies = [variant.accuracy for variant in variants if variant.accuracy]
    return (
        judged(
            *of_count,
            f"{len(variants)} variants of {architectures} architectures, {each:.1f} for each; the paper: {paper_each:.1f}.",
            holds=each >= paper_each and architectures >= LEAST_ARCHITECTURES,
            why="Fewer architectures have been measured so far; the command goes on.",
        ),
        _spans(
            *of_loading,
            [variant.load_s for variant in quiet],
            LOADING,
            "Files are in the page cache, and no variant starts a container or initialises an accelerator.",
        ),
        _spans(
            *of_latency,
            [variant.latency_s[1] for variant in quiet],
            LATENCY,
            "Images are of 64 × 64, and all variants run on one or two cores: the paper's range is that of its devices.",
        ),
        Claim(
            *of_accuracy,
            f"{100.0 * min(accuracies):.1f} to {100.0 * max(accuracies):.1f} % on digits: "
            f"{max(accuracies) / min(accuracies):.2f} ×.",
            "not comparable",
            "Heads on digits, and random backbones but for EfficientNet-Lite: no package has a labelled set of ImageNet.",
        ),
    )


def _spans(where: str, says: str, values: Sequence[float], factor: float, why: str) -> Claim:
    ratio = max(values) / max(min(values), 1e-9)
    said = f"{1e3 * min(values):.3g} ms to {max(values):.3g} s: {ratio:,.1f} ×, of {len(values)} variants that nothing disturbed."
    return judged(where, says, said, holds=ratio >= factor, why=why)


def _architectures(found: Measured, variants: Sequence[Variant]) -> Table:
    """A row for each architecture: its variants, and the ranges of what was measured."""
    weights = found.document["weights"]
    rows: list[tuple[Any, ...]] = []
    for name in dict.fromkeys(variant.architecture for variant in variants):
        mine = [variant for variant in variants if variant.architecture == name]
        single = [1e3 * variant.latency_s[1] for variant in mine]
        engines = sorted({f"{variant.engine} {variant.precision}" for variant in mine})
        accuracies = [100.0 * variant.accuracy for variant in mine]
        rows.append(
            (
                name,
                next((kind for known, kind in weights.items() if known.replace("_", "-") == name), "random"),
                len(mine),
                ", ".join(engines),
                f"{min(accuracies):.1f} to {max(accuracies):.1f}",
                f"{min(single):.3g} to {max(single):.3g}",
                max(variant.saturation_rps for variant in mine),
                statistics.median(variant.load_s for variant in mine),
                max(variant.memory_bytes for variant in mine) / 2**20,
            )
        )
    heads = (
        "architecture", "weights", "variants", "engines", "accuracy on digits (%)", "one sample (ms)", "most samples/s",
        "load, median (s)", "peak memory (MiB)",
    )  # fmt: skip
    return table(
        "table6-here", "Variants by architecture", heads, rows, f"All measurements: benchmarks/results/{found.name}.json"
    )


def _picture(variants: Sequence[Variant]) -> Picture:
    """Latency of a sample against throughput and against the time to load, a colour for each engine and precision."""
    kinds = sorted({(variant.engine, variant.precision) for variant in variants})

    def draw(panels: list[Any]) -> None:
        for number, (engine, precision) in enumerate(kinds):
            mine = [variant for variant in variants if (variant.engine, variant.precision) == (engine, precision)]
            colour = SERIES[number] if number < len(SERIES) else MUTED
            single = [1e3 * run.latency_s[1] for run in mine]
            panels[0].plot(
                single,
                [variant.saturation_rps for variant in mine],
                ".",
                markersize=3,
                color=colour,
                label=f"{engine} {precision}",
            )
            panels[1].plot(single, [variant.load_s for variant in mine], ".", markersize=3, color=colour)
        panels[0].set(xscale="log", yscale="log", xlabel="one sample (ms)", ylabel="samples/s at the largest batch")
        panels[1].set(xscale="log", yscale="log", xlabel="one sample (ms)", ylabel="time to load (s)")
        panels[0].legend()

    caption = f"{len(variants)} variants, measured: each point is one, by engine and precision."
    return picture("table6", caption, draw, columns=2)
