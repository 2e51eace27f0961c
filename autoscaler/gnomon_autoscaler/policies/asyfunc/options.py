"""Options of AsyFunc's policies: the paper's parameters, its ablations, and alternative readings of ambiguous passages.

A function's owner sets `alpha`, `beta`, `gamma`, `kappa`, the bounds C_max (`gnomon/max-cores`) and B_max (`gnomon/max-batch`),
the use of free cores in a burst (`burst_cores`), `promotion`, the blocks that a Shadow may hold (`gnomon/blocks`), alternative
readings (`gnomon/reading`), and the part that `asyfunc-` omits. The other fields are for comparisons. The defaults are explained
in docs/decisions/0011-mls.md and 0012-lls.md; other values are the paper as printed or alternatives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gnomon_core.settings import Settings

READINGS: Mapping[str, Mapping[str, bool]] = {
    "arrivals": {"backlog": False},
    "loading": {"load_counts": True},
    "weights": {"overhead_counts": False},
    "shadows": {"shadows_count": True},
    "gain": {"gain": True},
    "objective": {"objective": True},
    "kappa": {"printed_kappa": True},
}
"""The options that each name in `gnomon/reading` sets."""

PERIOD_S = 10.0
"""The time in seconds between two model-level decisions (section 7.1)."""
TICK_S = 0.5
"""The time in seconds between two checks for a burst: one bin of the history, so that each check has a new bin."""
BURST_WINDOW_S = 0.5
"""R_burst counts the arrivals of this window."""
RELEASE_TICKS = 4
"""Number of ticks for which a Shadow must be superfluous before it is released."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the policy, including the readings of the paper.

    `alpha`, `beta` and `gamma` are the paper's thresholds (Algorithms 1 and 2). With `kappa` None, κ follows from the profile and
    the objective. `weight_mode` selects the loading times. `layers` and `adaptive` enable layer-level scaling and adaptive
    scheduling.

    - `shadows_count`: R_max of the model level includes Shadows, as Eq. 1 prints it.
    - `overhead_counts`: m and m_Φ include the memory of an instance besides its weights.
    - `objective`: configurations are ranked by Eq. 2 and Eq. 4, throughput per (c + ρ·m), not by the sum of lines 7 and 15.
    - `printed_kappa`: κ is in ρ·m as lines 7 and 15 print it, so that dear memory counts less (see `pairing`).
    - `contiguous`: a block set grows from the best block to its neighbours, so that there is one hand-over.
    - `fewer_shadow_cores`: Shadows of fewer than min(free cores, C_max) cores are considered, too.
    - `load_counts`: a batch that waits for the Shadow to load must be timely as well (line 13).
    - `gain`: η of a Shadow counts the rise of R_max, not the throughput b_S / t_l of its samples.
    - `backlog`: R_burst counts waiting requests; otherwise it is the rate of arrivals alone.
    - `burst_cores`: the use of free cores in a burst, "shadow", "resize" or "either" (see `lls`).
    - `promotion`: a Shadow may become a Body if another Body is needed.
    - `max_shadows`: the most Shadows of a Body (see `lls`).
    """

    alpha: float = 0.8
    beta: float = 0.6
    gamma: float = 1.0
    kappa: float | None = None
    period_s: float = PERIOD_S
    tick_s: float = TICK_S
    release_ticks: int = RELEASE_TICKS
    weight_mode: str = "shared"
    layers: bool = True
    adaptive: bool = True
    shadows_count: bool = False
    overhead_counts: bool = True
    objective: bool = False
    printed_kappa: bool = False
    contiguous: bool = False
    fewer_shadow_cores: bool = False
    load_counts: bool = False
    gain: bool = False
    backlog: bool = True
    burst_cores: str = "shadow"
    promotion: bool = False
    max_shadows: int = 1


def asyfunc_options(settings: Settings) -> Options:
    """The options of `asyfunc`: everything is on."""
    read_otherwise = {name: value for reading in settings.readings for name, value in READINGS[reading].items()}
    return Options(
        alpha=settings.alpha,
        beta=settings.beta,
        gamma=settings.gamma,
        kappa=settings.kappa,
        weight_mode=settings.weight_mode,
        burst_cores=settings.burst_cores,
        promotion=settings.promotion,
        max_shadows=settings.max_shadows,
        contiguous=settings.blocks == "contiguous",
        **read_otherwise,
    )


def ablated_options(settings: Settings) -> Options:
    """The options of `asyfunc-`: `asyfunc` without the part that `gnomon/ablation` names."""
    without = settings.ablation
    return replace(asyfunc_options(settings), layers=without == "adaptive", adaptive=without == "layers")
