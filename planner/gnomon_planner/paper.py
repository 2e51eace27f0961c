"""BATCH's own latency distribution (Section IV, Eqs. 4–16), for comparison with the exact one.

What is printed is kept wherever it can be computed: the guess of the phase at a batch's first request (Eqs. 13, 14), waits
that are uniform between the first request and the last (case 2 of Eq. 9), and a full batch that always takes the mean time τ to
fill (Eqs. 10, 15). Where the text contradicts itself or is incomplete, it is read as it must mean; decision 0019 works an example
for each:

- Eq. 7: the last entry is 1 minus the others, to B − 2. Eq. 8: ρ_k, the share of requests in a batch of k, is k·π_{k−1} / Σ
  i·π_{i−1}.
- Eq. 9: the windows of different sizes overlap, so F(t) = Σ_k ρ_k·F_k(t), each F_k over its own window. The first request of an
  incomplete batch waits exactly T, the last of a full one not at all: 1/k of its members each. `literal` leaves these two among
  the uniform ones, as case 2 and 3 are printed; only a batch of one waits exactly T there.
- Eqs. 10, 15: τ = (B − 1)/λ may exceed T: min(T, τ).
- Eq. 13: λ_m/ω_m, the arrivals while in phase m, is proportional to θ_m·λ_m (θ the stationary phase, λ_m the rate in it), which
  exists for a MAP of any order as well. Eq. 14 names the entries of the buffer's first state; the others are 0.
"""

from __future__ import annotations

import math

import numpy as np

from gnomon_planner.buffer import BufferPlan
from gnomon_planner.latency import Mixture, ServiceTimes
from gnomon_planner.maps import Counting, Map
from gnomon_planner.numerics import Array, Curves


class PaperLatency(Mixture):
    """The latency as BATCH predicts it; `literal` without the readings of Eq. 9's cases 2 and 3.

    Raises:
        GnomonError: 400 `bad_service_times`: not one for each batch size.

    """

    def __init__(self, process: Map, plan: BufferPlan, service: ServiceTimes, *, literal: bool = False) -> None:
        rows = service.upto(plan.batch).likely
        self.phases = first_phases(process, plan)
        shares = member_shares(process, plan, self.phases)
        fill_s = min(plan.timeout_s, (plan.batch - 1) / process.rate_rps)
        atoms: dict[float, float] = {}
        windows: list[tuple[float, float, float]] = []
        for size, (row, share) in enumerate(zip(rows, shares, strict=True), start=1):
            full = size == plan.batch
            window_s = fill_s if full else plan.timeout_s
            apart = 1.0 if size == 1 or window_s == 0.0 else 0.0 if literal else 1.0 / size
            for seconds, likely in row if share > 0.0 else ():
                if apart < 1.0:
                    windows.append((seconds, window_s, (1.0 - apart) * share * likely))
                if apart > 0.0:
                    place = seconds + (0.0 if full else window_s)
                    atoms[place] = atoms.get(place, 0.0) + apart * share * likely
        lengths = np.array(sorted({window_s for _, window_s, _ in windows}))
        super().__init__(
            atoms,
            _uniform(lengths) if windows else None,
            shifts=np.array([start for start, _, _ in windows]),
            functions=np.array([int(np.searchsorted(lengths, length)) for _, length, _ in windows], dtype=int),
            weights=np.array([weight for _, _, weight in windows]),
        )


def first_phases(process: Map, plan: BufferPlan) -> Array:
    """π(0) of Eqs. 13 and 14: distribution of the phase at a batch's first request, shape (n)."""
    rates = process.D1.sum(axis=1)
    # Nothing arrives in a phase without a rate, however long T is: 0·∞ would be no number.
    within = np.multiply(rates, plan.timeout_s, out=np.zeros(len(rates)), where=rates > 0.0)
    batches = process.stationary * rates / np.minimum(plan.batch, within + 1.0)
    found: Array = batches / batches.sum()
    return found


def member_shares(process: Map, plan: BufferPlan, phases: Array) -> Array:
    """ρ_1 … ρ_B of Eqs. 5–8: the share of all requests that are in a batch of each size, shape (B)."""
    ends = np.zeros(plan.batch)
    if plan.batch > 1 and math.isfinite(plan.timeout_s):
        within = Counting(process, plan.batch - 1).at(np.array([plan.timeout_s]))[0]
        ends[:-1] = (phases @ within).sum(axis=-1)
    ends[-1] = max(0.0, 1.0 - ends[:-1].sum())
    members = np.arange(1, plan.batch + 1) * ends
    found: Array = members / members.sum()
    return found


def _uniform(lengths: Array) -> Curves:
    """min(w/length, 1) for each length, one straight piece between any two of them."""
    edges = np.concatenate([[0.0], lengths])
    left, right = (np.minimum(1.0, points[:, None] / lengths) for points in (edges[:-1], edges[1:]))
    return Curves(edges, np.stack([(left + right) / 2.0, (right - left) / 2.0], axis=1))
