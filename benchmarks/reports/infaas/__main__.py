"""The report on INFaaS: what the paper says beside what was found, table by table and figure by figure.

    python -m benchmarks.reports.infaas [--quick] [--output FOLDER]     docs/infaas.md and its figures; elsewhere with --output

Claims are computed from `benchmarks/results`: what no benchmark has measured yet is "not measured", with the command. Figures 5
and 6 are drawn from loads that are simulated second by second, in a minute or two; the results are kept in .cache/reports/infaas,
where the page with all tables is as well. `--quick` simulates a minute of each load, to see that it works.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.programs import ROOT, ended_well
from benchmarks.report import interpreter, machine
from benchmarks.reports.infaas import beyond, catalog, configurations, decisions, serving
from benchmarks.reports.infaas.serving import Setting
from benchmarks.reports.report import Claim, Measured, Report, Section, Store, counted, rows_of, sections_of

CACHE = ROOT / ".cache" / "reports" / "infaas"
FIGURES = "figures/infaas"
STEPS = (serving.steps,)
SECTIONS = (
    configurations.section,
    catalog.section,
    serving.production,
    serving.patterns,
    serving.sharing,
    decisions.section,
    beyond.section,
)
BENCHMARKS = ("variants", "infaas_models", "infaas_resnet50", "selection", "variant_scaling", "degrading", "relieving")
LONG = 12
"""Longer tables are left to the page and its CSV files."""
TITLE = "INFaaS, measured again"
ABOUT = (
    (
        "INFaaS (Romero, Li, Yadwadkar, Kozyrakis: “INFaaS: Automated Model-less Inference Serving”, ATC 2021) selects a variant "
        "of a model for each query, and scales the variants. Here is each of its tables and figures of results, 2, 3, 6, 7 and "
        "Figures 5 to 7, with Gnomon's policies; the paper has no others. The last section goes beyond it."
    ),
    (
        "Variants on CPUs are measured on this machine. There is no GPU and no Inferentia: what needs one is simulated, from the "
        "paper's Table 2 in proportion to published GFLOPs, and says so at each number."
    ),
)


def main(arguments: Sequence[str] | None = None) -> Path:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.reports.infaas", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a minute of each load, to see that it works")
    parser.add_argument("--output", type=Path, help="where infaas.md goes; docs unless it is said")
    options = parser.parse_args(arguments)
    cache = CACHE.with_name("infaas-quick") if options.quick else CACHE
    folder: Path = options.output or (cache if options.quick else ROOT / "docs")
    report = made(Setting(quick=options.quick), Store(cache / "steps", lambda text: print(text, flush=True)))
    page = report.write(cache)
    document = published(report, folder)
    print(f"{report}\n{page}\n{document}", flush=True)
    return document


def made(setting: Setting, store: Store) -> Report:
    """The report; what is not kept is simulated."""
    runs = [
        f"{measurement.name} {measurement.document['measured_at'][:10]}"
        for measurement in map(Measured, BENCHMARKS)
        if measurement.there
    ]
    facts = {"Machine": machine(), "Python": interpreter(), "Benchmarks": ", ".join(runs), "Again": "make report-infaas"}
    if setting.quick:
        facts["Quick"] = "a minute of each load is drawn; no figure to cite"
    return Report(TITLE, ABOUT, facts, sections_of(STEPS, SECTIONS, setting, store))


def published_claims() -> list[Claim]:
    """All claims, in the order of the document; nothing is simulated."""
    return [
        *configurations.claims(),
        *catalog.claims(),
        *serving.production_claims(),
        *serving.pattern_claims(),
        *serving.sharing_claims(),
        *decisions.claims(),
    ]


def published(report: Report, folder: Path) -> Path:
    """Write infaas.md with its pictures beside it; the path."""
    figures_folder = folder / FIGURES
    figures_folder.mkdir(parents=True, exist_ok=True)
    for picture in report.pictures:
        (figures_folder / f"{picture.name}.svg").write_text(picture.svg, encoding="utf-8")
    facts = "\n".join(f"- {name}: {value}" for name, value in report.facts.items())
    parts = [f"# {report.title}\n", *(f"{text}\n" for text in report.about), f"{facts}\n"]
    parts.append(f"{len(report.claims)} claims: {counted(report.claims)}.\n")
    parts += [_text(section) for section in report.sections]
    document = folder / "infaas.md"
    document.write_text("\n".join(parts), encoding="utf-8")
    return document


def _text(section: Section) -> str:
    """A section as Markdown: its text, pictures, claims and short tables."""
    parts = [f"## {section.title}\n", *(f"{text}\n" for text in section.text)]
    parts += [f"![{picture.caption}]({FIGURES}/{picture.name}.svg)\n\n{picture.caption}\n" for picture in section.pictures]
    if section.claims:
        parts.append(rows_of(section.claims))
    for table in section.tables:
        if len(table.rows) <= LONG or table.name == "table6-here":
            parts.append(f"**{table.title}**{': ' + table.note if table.note else ''}\n\n{table.to_markdown()}")
    return "\n".join(parts)


if __name__ == "__main__":
    ended_well(main)
