"""BATCH's buffer (batch size B, timeout T) under the arrivals of a MAP: its batch sizes and the wait of each request in it.

A batch opens with a request that finds the buffer empty. It is sent when it holds B requests, or T seconds after it opened.

**The phase at the first request.** The arrival process changes its phase while a batch fills, so the phase α in which the next
batch opens depends on how this one ended. α is the stationary distribution of that chain over batches, K = [Σ_{j≤B−2} P_j(T) +
E_{B−2}(T)]·P, with P = (−D0)⁻¹D1 the step from one arrival to the next and E_j(s) the probability that j + 1 arrivals come
within s, in the phase after the last of them: E_j = (E_{j−1} − P_j)·P, E_{−1} = I. (BATCH, Eqs. 13 and 14, guesses it;
Poisson processes have one phase and need none of it.)

**Batch sizes.** p_k = αP_{k−1}(T)e for k < B; p_B = 1 − Σ p_k.

**Waits.** For each size k, members_k(w) is the mean number of requests, per batch, that are in a batch of k and wait at most
w. The first of an incomplete batch waits exactly T, an atom. The others came within the last w seconds before T:

    members_k(w) = Σ_i i·αP_{k−1−i}(T − w)·P_i(w)e                                              k < B, w < T

In a full batch the last waits 0, an atom; the first waits ≤ w if B − 1 more come within w; the one with i more after it,
having come before T − w, waits ≤ w if those i come within w, and having come later if the batch fills at all. With Q_i(w) =
P(at least i within w):

    members_B(w) = p_B + αQ_{B−1}(w) + Σ_{i=1}^{B−2} αE_{B−2−i}(T − w)·Q_i(w) + Σ_{i=2}^{B−1} (i − 1)·αP_{B−1−i}(T − w)·Q_i(w)

There is no integral, and all terms are sums of probabilities.
Poisson, λ = 10/s, B = 2, T = 0.1 s: p_1 = e^−1 = 0.368, and of 1.632 requests per batch 0.632 wait 0, 0.368 wait 0.1 s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gnomon_core.errors import bad_request
from gnomon_planner.maps import Counting, Map, convolved
from gnomon_planner.numerics import Array, stationary_of

NEGLIGIBLE_PROBABILITY = 1e-14  # a probability below this counts as 0
ROUNDING = 1e-13  # a transition of the chain over batches below this is rounding


@dataclass(frozen=True, slots=True)
class BufferPlan:
    """B, the largest batch size, and T, the buffer timeout in seconds from the first request of a batch; T may be infinite.

    Raises:
        GnomonError: 400 `bad_plan`.

    """

    batch: int
    timeout_s: float

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise bad_request("bad_plan", f"The largest batch {self.batch} is below 1.", "A batch has at least 1 request.")
        if math.isnan(self.timeout_s) or self.timeout_s < 0.0:
            raise bad_request("bad_plan", f"The timeout {self.timeout_s} s is invalid.", "A timeout is 0 or more.")


class Buffer:
    """The exact behaviour of one buffer: `phases` α, shape (n); `sizes` p_1 … p_B, shape (B); and the waits, by `members`.

    `timeout_s` is T, or a shorter time within which every batch fills.
    """

    def __init__(self, process: Map, plan: BufferPlan) -> None:
        self.process = process
        self.plan = plan
        self._step = np.asarray(np.linalg.solve(-process.D0, process.D1), dtype=np.float64)
        self._counting = Counting(process, max(1, plan.batch - 1))
        self.timeout_s = self._timeout_that_matters()
        self.phases, self.sizes = self._begin()

    @property
    def mean_size(self) -> float:
        """Mean requests per batch in the long run."""
        return float(self.sizes @ np.arange(1, self.plan.batch + 1))

    @property
    def rate(self) -> float:
        """The fastest rate of the process, per second; its inverse is the shortest time scale."""
        return self._counting.rate

    def members(self, waits_s: Array) -> Array:
        """members_k(w) for 0 ≤ w ≤ T in seconds, without the first of incomplete batches; shape (waits, B)."""
        batch = self.plan.batch
        if batch == 1:
            return np.ones((len(waits_s), 1))
        before = self._counting.at(self.timeout_s - waits_s)
        # Waits that are symmetric in [0, T], as Chebyshev nodes are, need only one evaluation of the counts.
        mirrored = np.allclose(self.timeout_s - waits_s, waits_s[::-1], rtol=ROUNDING, atol=0.0)
        after = before[::-1] if mirrored else self._counting.at(waits_s)
        early = (self.phases @ before).reshape(len(waits_s), batch - 1, -1)
        late = after.sum(axis=-1)
        members = np.empty((len(waits_s), batch))
        later_counts = np.arange(batch - 1)
        members[:, :-1] = convolved(early, later_counts[:, None] * late)
        members[:, -1] = self._members_of_full(early, late)
        return members

    def _members_of_full(self, early: Array, late: Array) -> Array:
        """members_B(w), from αP_j(T − w) and P_j(w)e for j < B − 1, both (waits, B − 1, n)."""
        batch = self.plan.batch
        # at_least[:, i] is Q_i(w), i = 0 … B − 1.
        at_least = 1.0 - np.concatenate([np.zeros_like(late[:, :1]), np.cumsum(late, axis=1)], axis=1)
        members: Array = self.sizes[-1] + at_least[:, batch - 1] @ self.phases
        if batch > 2:  # noqa: PLR2004 - a batch of two has a first and a last
            weights = np.arange(1, batch - 1)[:, None]
            members = members + (early[:, : batch - 2][:, ::-1] * weights * at_least[:, 2:batch]).sum(axis=(1, 2))
            phases_at_arrival, phases_after_arrival = np.broadcast_to(self.phases, early[:, 0].shape), []
            for level in range(batch - 2):
                phases_at_arrival = np.clip((phases_at_arrival - early[:, level]) @ self._step, 0.0, None)
                phases_after_arrival.append(phases_at_arrival)
            members = members + (np.stack(phases_after_arrival[::-1], axis=1) * at_least[:, 1 : batch - 1]).sum(axis=(1, 2))
        return members

    def _begin(self) -> tuple[Array, Array]:
        """α and p."""
        if self.plan.batch == 1:
            return self.process.embedded, np.ones(1)
        counts_within_timeout = self._counting.at(np.array([self.timeout_s]))[0]
        phases = first_phases_of(counts_within_timeout[None], self._step, self.process.embedded)[-1, 0]
        sizes = np.empty(self.plan.batch)
        sizes[:-1] = (phases @ counts_within_timeout).sum(axis=-1)
        sizes[-1] = max(0.0, 1.0 - sizes[:-1].sum())
        return phases, sizes

    def _timeout_that_matters(self) -> float:
        """T in seconds, or a shorter time within which every batch fills."""
        if self.plan.batch == 1:
            return 0.0
        timeout_s = min(self.plan.timeout_s, self.plan.batch / self.process.rate_rps)
        while timeout_s < self.plan.timeout_s:
            if self._counting.at(np.array([timeout_s]))[0].sum(axis=(0, 2)).max() < NEGLIGIBLE_PROBABILITY:
                return timeout_s
            timeout_s = min(2.0 * timeout_s, self.plan.timeout_s)
        return timeout_s


def first_phases_of(within: Array, step: Array, embedded: Array) -> Array:
    """First phases α for the buffers of each B = 2 … levels + 1 and several T, shape (levels, timeouts, n); BATCH, Eqs. 13, 14.

    `within` is P_j(T) for j below `levels`, shape (timeouts, levels, n, n), `step` P and `arbitrary` the phase after an arbitrary
    arrival. If the chain over batches is reducible (every batch of two begins with the same of two alternating phases, or a phase
    lasts for 10¹³ batches), α is its long-run distribution from there: each class of phases has as many arrivals as the process,
    and so fewer batches where they are larger.
    """
    count, levels, order = within.shape[:3]
    chains = np.empty((levels, count, order, order))
    phases_at_arrival, incomplete = np.broadcast_to(np.eye(order), within[:, 0].shape), np.zeros_like(within[:, 0])
    for level in range(levels):
        phases_at_arrival = np.clip((phases_at_arrival - within[:, level]) @ step, 0.0, None)
        incomplete = incomplete + within[:, level]
        chains[level] = (incomplete + phases_at_arrival) @ step
    chains = np.where(chains > ROUNDING, chains, 0.0)
    chains /= chains.sum(axis=-1, keepdims=True)
    phases = np.empty(chains.shape[:-1])
    # A phase that is reached from every phase belongs to the only recurrent class. State reduction must end with that phase:
    # others may be transient, such as a phase in which nothing arrives.
    always_reached = np.asarray((chains > 0.0).all(axis=-2))
    common = int(always_reached.reshape(-1, order).sum(axis=0).argmax())
    connected = always_reached[..., common]
    permutation = np.array([common, *(phase for phase in range(order) if phase != common)])
    phases[connected] = stationary_of(chains[connected][:, permutation[:, None], permutation])[:, permutation.argsort()]
    for level, timeout in zip(*np.nonzero(~connected), strict=True):
        # The mean size of a batch that opens in each phase: B, less the places that a timeout leaves empty.
        unfilled = np.arange(level + 1, 0, -1) @ within[timeout, : level + 1].sum(axis=-1)
        phases[level, timeout] = _long_run_phases(chains[level, timeout], embedded, level + 2.0 - unfilled)
    return phases


def _long_run_phases(chain: Array, start: Array, sizes: Array) -> Array:
    """Long-run distribution of the chain over batches from an arrival, also for a reducible chain (several classes)."""
    order = len(chain)
    if order == 1:
        return np.ones(1)
    reachable = np.linalg.matrix_power(((chain > 0.0) | np.eye(order, dtype=bool)).astype(float), order) > 0.0
    mutual = reachable & reachable.T
    if mutual.all():
        return stationary_of(chain)
    long_run = np.zeros(order)
    recurrent = (reachable <= mutual).all(axis=1)
    entering = start.copy()
    if not recurrent.all():
        transient = np.eye(order)[~recurrent][:, ~recurrent] - chain[np.ix_(~recurrent, ~recurrent)]
        entering[recurrent] += np.linalg.solve(transient.T, start[~recurrent]) @ chain[np.ix_(~recurrent, recurrent)]
    for in_class in np.unique(mutual[recurrent], axis=0):
        class_phases = stationary_of(chain[np.ix_(in_class, in_class)])
        long_run[in_class] = entering[in_class].sum() / (class_phases @ sizes[in_class]) * class_phases
    normalised: Array = long_run / long_run.sum()
    return normalised
