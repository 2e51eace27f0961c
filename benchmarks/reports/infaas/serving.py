"""Figures 5 to 7: loads beside Clipper+ and SM+. Everything is simulated; Figures 1 and 7 need a GPU and are not measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import gnomon_autoscaler.policies.infaas
import gnomon_gateway.variants
import gnomon_simulator
from benchmarks import infaas_loads
from benchmarks.infaas_loads import LOADS, PATTERNS
from benchmarks.reports.report import INK, SERIES, Claim, Measured, Picture, Results, Section, Step, judged, picture, unmeasured
from benchmarks.simulation.variant_simulation import simulate_application

SYSTEMS = {"models": ("clipper", "sm", "infaas"), "pattern": ("clipper_cpu", "clipper_gpu", "sm_cpu", "sm_gpu", "infaas")}
ON_GPUS = ("clipper_gpu", "sm_gpu", "infaas")
LABELS = {
    "clipper": "Clipper+", "sm": "SM+", "infaas": "INFaaS", "clipper_cpu": "Clipper+ CPU", "clipper_gpu": "Clipper+ GPU",
    "sm_cpu": "SM+ CPU", "sm_gpu": "SM+ GPU",
}  # fmt: skip
WINDOW_S = {"models": 4, "pattern": 2}
"""The paper measures Figure 5 every 4 s, Figure 6 every 2 s."""
ASKED_RPS = {"flat": 4.0, "steady": 674.9, "fluctuating": 23.0}
MET = 0.95
CPU_RPS = 10.5
WAITING = (
    "Queries of a Poisson process wait for each other: where an instance takes 200 of the 300 ms, one that comes in the "
    "meantime is late, and late ones are not counted here."
)
UPGRADING = (
    "An upgrade begins when the peak has begun and takes seconds to load: queries that are late meanwhile are not counted."
)
Series = Mapping[str, list[int]]
COMMAND = "python -m benchmarks.infaas"
PRODUCTION = "Figure 5, section 6.1"
NO_GPU = "There is no GPU here: how co-located models disturb each other on one cannot be measured, and was not made up."


@dataclass(frozen=True, slots=True)
class Setting:
    """`quick` simulates a minute of each load."""

    quick: bool


def steps(setting: Setting) -> Iterable[Step]:
    """The loads of Figures 5 and 6, second by second, of one seed."""
    sources = (infaas_loads, gnomon_simulator, gnomon_autoscaler.policies.infaas, gnomon_gateway.variants)
    for load in ("models", *PATTERNS):
        yield Step(f"series-{load}", _simulated, {"load": load, "quick": setting.quick}, sources=sources)


def _simulated(parameters: Mapping[str, Any], _: Results) -> dict[str, Any]:
    """Queries asked and answered in time, by second, of each system."""
    load = str(parameters["load"])
    case = LOADS[load](1, quick=bool(parameters["quick"]))
    found = {}
    for system, cluster in case.systems:
        if system.name in SYSTEMS["models" if load == "models" else "pattern"]:
            result = simulate_application(case.variants, case.kinds, case.load, system, cluster=cluster)
            seconds = range(int(case.load.duration_s))
            found[system.name] = {
                "asked": [result.asked_at[second] for second in seconds],
                "in_time": [result.in_time_at[second] for second in seconds],
            }
    return found


def production(_: Setting, results: Results) -> Section:
    """Figure 5."""
    text = (
        "22 architectures under 220 s of Twitter mapped to 10 to 1,000 queries/s, simulated. There are no measured variants on "
        "accelerators: they are ResNet50's of Table 2, in proportion to published GFLOPs. The claims have the means of three "
        "seeds, the picture has the first one."
    )
    measured = Measured("infaas_models")
    tables = (measured.table("fig5-figures", "Figure 5, simulated: all figures"),) if measured.there else ()
    return Section(
        "fig5", "Figure 5: a production load", (text,), (_boxes(results["series-models"]),), tables, production_claims()
    )


def patterns(_: Setting, results: Results) -> Section:
    """Figure 6."""
    text = (
        "ResNet50 within 300 ms, four minutes of 4 queries/s, of 650 to 700, and of 4 with peaks of 80, simulated with the "
        "variants of Table 2 and further ones in proportion. A running instance costs what Table 2 says; the paper's costs are "
        "proportional to the memory."
    )
    measured = Measured("infaas_resnet50")
    tables = (measured.table("fig6-figures", "Figure 6 and Table 3: all figures"),) if measured.there else ()
    drawn = _lines({load: results[f"series-{load}"] for load in PATTERNS}, measured)
    return Section("fig6", "Figure 6: one model under three patterns", (text,), (drawn,), tables, pattern_claims())


def sharing(_: Setting, __: Results) -> Section:
    """Figures 1 and 7."""
    return Section("fig7", "Figures 1 and 7: sharing a GPU", (NO_GPU,), claims=sharing_claims())


def production_claims() -> tuple[Claim, ...]:
    """Figure 5's ratios, to the digits that the paper gives."""
    measured = Measured("infaas_models")
    where = PRODUCTION
    ceiling = "The baselines answer 89 to 91 % of the queries in time here: who answers all has 1.12 and 1.10 times as many."
    violations = "The baselines' variants had room for these seeds."
    made = [
        _ratio(measured, f"{ratio:g} × {than} {LABELS[name]}.", key.format(name=name), ratio, why)
        for than, key, why, least in (
            ("the throughput of", "infaas ÷ {name}, throughput", ceiling, (1.1, 1.3)),
            ("fewer violations than", "{name} ÷ infaas, violations", violations, (1.63, 2.54)),
        )
        for name, ratio in zip(("clipper", "sm"), least, strict=True)
    ]
    says = "Violations are below 4 % on average."
    if (figure := measured.figure("simulated models: infaas, violations")) is None:
        made.append(unmeasured(where, says, f"{COMMAND} models"))
    else:
        said, holds = f"simulated: {figure['value']:.2f} %", figure["value"] < 4.0
        made.append(judged(where, says, said, holds=holds, why="Instances had too little room for waiting."))
    for name in ("clipper", "sm"):
        says = f"1.23 × lower cost of the workers than {LABELS[name]}."
        figure = measured.figure(f"simulated models: infaas ÷ {name}, worker_cost")
        if figure is None:
            made.append(unmeasured(where, says, f"{COMMAND} models"))
            continue
        ratio = 1.0 / figure["value"]
        made.append(judged(where, says, f"simulated: {ratio:.2f} ×", holds=reaches(ratio, 1.23), why="Its workers were as many."))
    utilisation = "The simulated workers have no utilisation: a batch takes the time of its profile, whatever else runs."
    says = "Workers are utilised by 48.9 % on average, GPU memory by 58.6 %: 5.6 and 2.8 × as much as with SM+ and Clipper+."
    return (*made, Claim(where, says, "not measured", "not measured", utilisation))


def pattern_claims() -> tuple[Claim, ...]:
    """Figure 6, pattern by pattern."""
    measured = Measured("infaas_resnet50")
    says = (
        (
            "flat",
            "All systems meet the demand.",
            _all_meet(SYSTEMS["pattern"], WAITING),
        ),
        ("flat", "INFaaS costs 21.6 × less than Clipper+ and 21.3 × less than SM+ on GPUs.", _cheaper(21.6, 21.3)),
        ("steady", "Clipper+ and SM+ on CPUs serve about 10 queries/s.", _on_cpus),
        ("steady", "INFaaS and Clipper+ on a GPU meet the demand.", _all_meet(("clipper_gpu", "infaas"), WAITING)),
        ("steady", "SM+ on GPUs is 5 % more expensive than INFaaS and serves 15 % fewer queries.", _sm_is_worse),
        (
            "fluctuating",
            "INFaaS, Clipper+ and SM+ on GPUs meet the demand.",
            _all_meet(ON_GPUS, UPGRADING),
        ),
        ("fluctuating", "Clipper+ and SM+ on CPUs serve 10 queries/s at most.", _on_cpus),
        ("fluctuating", "INFaaS is 3 × cheaper than SM+ and Clipper+ on GPUs.", _cheaper(3.0, 3.0)),
    )
    made = []
    for load, says_it, holds in says:
        where = f"Figure 6, {load} load"
        if measured.figure(f"simulated {load}: infaas, throughput") is None:
            made.append(unmeasured(where, says_it, f"{COMMAND} resnet50"))
            continue
        held, seen, why = holds(measured, load)
        made.append(judged(where, says_it, f"simulated: {seen}", holds=held, why=why))
    return tuple(made)


def sharing_claims() -> tuple[Claim, ...]:
    """Claims that need a GPU, which are not measured."""
    says = (
        (
            "Figure 1, section 2.3",
            "At high load a large model on the same GPU slows a small one down, and hardly suffers.",
        ),
        ("Figure 7, section 6.3", "INFaaS notices interference on a GPU and adds a worker; Clipper+ does not, and gets slower."),
        ("Section 6.3", "Sharing GPUs saves 10 % of the cost beside Clipper+."),
    )
    return tuple(Claim(where, say, "not measured", "not measured", NO_GPU) for where, say in says)


Holds = Callable[[Measured, str], tuple[bool, str, str]]
"""The check of a claim on a pattern: whether it holds, what was measured, and the reason why it would not hold."""


def _value(measured: Measured, key: str) -> float:
    figure = measured.figure(key)
    return math.nan if figure is None else float(figure["value"])


def _throughputs(measured: Measured, load: str, systems: Iterable[str]) -> dict[str, float]:
    return {name: _value(measured, f"simulated {load}: {name}, throughput") for name in systems}


def _said(values: Mapping[str, float], unit: str) -> str:
    return ", ".join(f"{LABELS[name]} {value:.4g}" for name, value in values.items()) + f" {unit}"


def _all_meet(systems: tuple[str, ...], why: str) -> Holds:
    def holds(measured: Measured, load: str) -> tuple[bool, str, str]:
        found = _throughputs(measured, load, systems)
        seen = f"{_said(found, 'queries/s in time')}, of {ASKED_RPS[load]:g}"
        return min(found.values()) >= MET * ASKED_RPS[load], seen, why

    return holds


def _cheaper(clipper: float, sm: float) -> Holds:
    def holds(measured: Measured, load: str) -> tuple[bool, str, str]:
        found = {name: _value(measured, f"simulated {load}: {name} ÷ infaas, cost") for name in ("clipper_gpu", "sm_gpu")}
        why = "In Table 2 the GPU costs 16 times the CPU variant, of which INFaaS has two; the paper's costs follow the memory."
        late = _late(measured, load)
        seen = f"{_said(found, '× the cost of INFaaS')}{late}"
        return found["clipper_gpu"] >= clipper and found["sm_gpu"] >= sm, seen, why

    return holds


def _late(measured: Measured, load: str) -> str:
    share = 1.0 - _value(measured, f"simulated {load}: infaas, throughput") / ASKED_RPS[load]
    return f", which answers {100.0 * share:.1f} % of the queries late or not at all" if share > 1.0 - MET else ""


def _on_cpus(measured: Measured, load: str) -> tuple[bool, str, str]:
    found = _throughputs(measured, load, ("clipper_cpu", "sm_cpu"))
    return max(found.values()) <= CPU_RPS, _said(found, "queries/s in time"), "They had more instances."


def _sm_is_worse(measured: Measured, load: str) -> tuple[bool, str, str]:
    cost = _value(measured, f"simulated {load}: sm_gpu ÷ infaas, cost")
    found = _throughputs(measured, load, ("sm_gpu", "infaas"))
    why = (
        "SM+ replicates the variant for one sample until its replicas serve everything, and pays for three; the paper's had two."
    )
    return cost >= 1.05 and found["sm_gpu"] <= 0.85 * found["infaas"], f"{cost:.2f} × the cost, {_said(found, 'queries/s')}", why


def _ratio(measured: Measured, says: str, key: str, least: float, why: str) -> Claim:
    figure = measured.figure(f"simulated models: {key}")
    if figure is None:
        return unmeasured(PRODUCTION, says, f"{COMMAND} models")
    value = float(figure["value"])
    return judged(PRODUCTION, says, f"simulated: {value:.2f} ×", holds=reaches(value, least), why=why)


def reaches(value: float, paper: float) -> bool:
    """Return whether a value reaches the paper's, rounded to as many decimals."""
    return round(value, len(f"{paper:g}".partition(".")[2])) >= paper


# Pictures


def windows(values: list[int], length_s: int) -> list[float]:
    """The mean rate of each whole window."""
    starts = range(0, len(values) - length_s + 1, length_s)
    return [sum(values[start : start + length_s]) / length_s for start in starts]


def _boxes(found: Mapping[str, Series]) -> Picture:
    """Figure 5: throughput and violations of windows of 4 s."""
    length_s, names = WINDOW_S["models"], SYSTEMS["models"]
    rates = [windows(found[name]["in_time"], length_s) for name in names]
    asked = [windows(found[name]["asked"], length_s) for name in names]
    late = [
        [1.0 - value / max(of, 1e-9) for value, of in zip(mine, all_of, strict=True)]
        for mine, all_of in zip(rates, asked, strict=True)
    ]

    def draw(panels: list[Any]) -> None:
        labels = [LABELS[name] for name in names]
        for panel, values, said in ((panels[0], rates, "queries/s in time"), (panels[1], late, "share of violations")):
            boxes = panel.boxplot(values, widths=0.5, patch_artist=True, flierprops={"markersize": 2}, medianprops={"color": INK})
            for box, colour in zip(boxes["boxes"], SERIES, strict=False):
                box.set(facecolor=colour, alpha=0.5)
            panel.set_xticks(range(1, len(labels) + 1), labels)
            panel.set(ylabel=f"{said}, simulated")

    caption = "Throughput and violations in windows of 4 s, simulated: median, quartiles, 1.5 × their range."
    return picture("fig5", caption, draw, columns=2)


def _lines(found: Mapping[str, Mapping[str, Series]], measured: Measured) -> Picture:
    """Figure 6: throughput over time, and the mean cost, of each pattern."""

    def draw(panels: list[Any]) -> None:
        length_s, names = WINDOW_S["pattern"], SYSTEMS["pattern"]
        for column, (load, systems) in enumerate(found.items()):
            above, below = panels[column], panels[column + len(found)]
            for number, name in enumerate(names):
                rates = windows(systems[name]["in_time"], length_s)
                times = [length_s * place for place in range(len(rates))]
                above.plot(times, rates, linewidth=1.0, color=SERIES[number])
            costs = [_value(measured, f"simulated {load}: {name}, cost") for name in names]
            below.bar(range(len(names)), costs, 0.6, color=SERIES[: len(names)])
            below.set_xticks(range(len(names)), [LABELS[name].replace(" ", "\n") for name in names], fontsize=6.0)
            above.set(title=load, xlabel="s", ylabel="queries/s in time, simulated")
            below.set(ylabel="cost ($/s), simulated")

    caption = "Throughput in windows of 2 s above, mean cost in the same colours below, simulated."
    return picture("fig6", caption, draw, rows=2, columns=len(found))
