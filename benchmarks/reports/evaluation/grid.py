"""The cells of the evaluation, in the order in which they are simulated: what says most comes first.

A cell is a policy on a load, on a cluster, with a seed. Policies are data: one of the registry joins by a line of `POLICIES`,
and is left out where it is not installed.

| cluster | Bodies | nodes |
| --- | --- | --- |
| `paper` | AsyFunc's (docs/decisions/0011-mls.md): up to 16 cores, beyond two by 5 % serial work; 8 | 64 of 26 cores |
| `measured` | every cell of the profile is measured: 1 or 2 cores; 40, eight and more a node | 5 of 104 cores |

The number of Bodies is what the mean rate deserves at α = 0.8.

**Headroom.** α is the load of an instance, as a share of what it sustains, at which a policy makes another: 0.8 for `asyfunc`,
1 for `od` and `lv`, 1/1.5 for `k-lv`, 0.7 for `kpa`, which is told what an instance sustains (`gnomon/target-rps`). At equal
headroom all have the same α, and each is swept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from gnomon_autoscaler.registry import BUILT_IN

SEEDS = (1, 2, 3, 4, 5)
OBJECTIVES = (1.5, 1.0)
WEIGHTS = ("private", "shared")
ALPHAS = (0.5, 0.65, 0.8, 0.95)
READY_S = (0.2, 1.0, 4.6)
LOADS = ("twitter", "twitter-natural", "calm", "mmpp", "on-off", "azure", "azure-8")
MODEL = "yolov8x"
OTHERS = ("ssd300_vgg16", "vgg16", "inception_v3", "vit_b_16", "resnet50")


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy as it is simulated. `alpha` None is as it comes; `options` are fields of AsyFunc's `Options`."""

    name: str
    autoscaler: str
    alpha: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The policy's name, with its headroom where that was chosen."""
        return self.name if self.alpha is None else f"{self.name} α = {self.alpha:g}"


POLICIES = tuple(
    policy
    for policy in (
        Policy("asyfunc", "asyfunc"),
        Policy("asyfunc without layers", "asyfunc", options={"layers": False}),
        Policy("gnomon", "gnomon"),
        Policy("od", "od"),
        Policy("lv", "lv"),
        Policy("k-lv", "k-lv"),
        Policy("kpa", "kpa"),
        Policy("batch", "batch"),
        Policy("batch, hourly", "batch"),
        Policy("batch+", "batch+"),
    )
    if policy.autoscaler in BUILT_IN
)
SWEPT = ("asyfunc", "asyfunc without layers", "od", "lv", "kpa")
"""The policies that have a headroom to sweep."""
ABLATIONS = (
    Policy("without layers", "asyfunc", options={"layers": False}),
    Policy("without adaptive", "asyfunc", options={"adaptive": False}),
    Policy("with promotion", "asyfunc", options={"promotion": True}),
    Policy("larger Bodies, no Shadows", "asyfunc", options={"burst_cores": "resize"}),
    Policy("up to two Shadows", "asyfunc", options={"max_shadows": 2}),
    Policy("η by the objective", "asyfunc", options={"objective": True}),
)
SWEEPS = tuple(
    Policy(f"{letter} = {value:g}{unit}", "asyfunc", options={name: value})
    for letter, name, values, unit in (
        ("α", "alpha", (0.7, 0.9), ""),
        ("β", "beta", (0.4, 0.7), ""),
        ("γ", "gamma", (0.8, 1.2), ""),
        ("κ", "kappa", (0.01, 1.0), ""),
        ("period", "period_s", (5.0, 30.0), " s"),
    )
    for value in values
)
SENSITIVITY = (
    *SWEEPS,
    Policy("κ = 1, as printed", "asyfunc", options={"kappa": 1.0, "printed_kappa": True}),
    Policy("pool = 0", "asyfunc", options={"pool": 0}),
    Policy("pool = 4", "asyfunc", options={"pool": 4}),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One simulation. `ready_s` None takes a Body's load time from the profile."""

    group: str
    policy: Policy
    load: str = "twitter"
    cluster: str = "paper"
    model: str = MODEL
    objective: float = 1.5
    weights: str = "private"
    ready_s: float | None = None
    seed: int = 1
    duration_s: float = 1800.0

    @property
    def key(self) -> str:
        """Names the cell among those that are kept, whatever group it is in."""
        document = {name: value for name, value in asdict(self).items() if name != "group"}
        return hashlib.sha256(repr(sorted(document.items())).encode()).hexdigest()[:24]


def grid(duration_s: float, files: Sequence[str] = (), *, quick: bool = False) -> list[Cell]:
    """All cells; of `files` each is a load on both clusters."""
    if quick:
        few = [policy for policy in POLICIES if policy.name in ("asyfunc", "gnomon", "od", "kpa")]
        found = [Cell("head to head", policy, seed=seed) for policy in few for seed in SEEDS[:2]]
        found += [Cell("files", policy, load=name) for name in files for policy in few]
    else:
        found = list(_all(files))
    # Groups share cells: each is simulated once, and belongs to every group that has it.
    return [replace(cell, duration_s=duration_s) for cell in found]


def _all(files: Sequence[str]) -> Iterator[Cell]:
    yield from (
        Cell("files", policy, load=name, cluster=on) for name in files for on in ("paper", "measured") for policy in POLICIES
    )
    head = [Cell("head to head", policy, seed=seed) for seed in SEEDS for policy in POLICIES]
    yield from head
    swept = [policy for policy in POLICIES if policy.name in SWEPT]
    for load in ("mmpp", "twitter"):
        yield from (Cell("pareto", policy, load=load) for policy in POLICIES if policy.name not in SWEPT)
        yield from (Cell("pareto", replace(policy, alpha=alpha), load=load) for policy in swept for alpha in ALPHAS)
    yield from (Cell("arrivals", policy, load=load) for load in LOADS for policy in POLICIES)
    yield from (
        Cell("clusters", policy, load="mmpp", cluster="measured", weights=mode) for mode in WEIGHTS for policy in POLICIES
    )
    yield from (Cell("start", policy, load="mmpp", ready_s=ready_s) for ready_s in READY_S for policy in POLICIES)
    yield from (Cell("ablation", policy, load="mmpp") for policy in (POLICIES[0], *ABLATIONS))
    yield from (Cell("sensitivity", policy, load="mmpp") for policy in (POLICIES[0], *SENSITIVITY))
    yield from (Cell("models", policy, model=model) for model in OTHERS for policy in POLICIES)
    yield from (replace(cell, objective=objective, weights=mode) for objective in OBJECTIVES for mode in WEIGHTS for cell in head)
    yield from (Cell("arrivals", policy, load=load, seed=seed) for seed in SEEDS[1:] for load in LOADS for policy in POLICIES)
    for seed in SEEDS[1:]:
        for load in ("mmpp", "twitter"):
            yield from (Cell("pareto", replace(policy, alpha=a), load=load, seed=seed) for policy in swept for a in ALPHAS)
    # Further seeds of the other models come last: they take the longest, and differ least.
    yield from (Cell("models", policy, model=model, seed=seed) for seed in SEEDS[1:] for model in OTHERS for policy in POLICIES)
