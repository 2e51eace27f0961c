"""The buffer (B, T) under the arrivals of a MAP: the sizes of its batches, and the time that each request waits in it.

A batch begins with a request that finds the buffer empty. It goes when B requests are together, or T seconds after the first.

**The phase at the first request.** The process goes on while a batch fills, so the phase α in which the next batch begins
depends on how this one ended. α is the stationary distribution of that chain over batches, K = [Σ_{j≤B−2} P_j(T) +
E_{B−2}(T)]·P, with P = (−D0)⁻¹D1 the step from one arrival to the next and E_j(s) the probability that j + 1 arrivals come
within s, in the phase after the last of them: E_j = (E_{j−1} − P_j)·P, E_{−1} = I. (BATCH, Eqs. 13 and 14, guesses it;
Poisson processes have one phase and need none of it.)

**Sizes.** p_k = αP_{k−1}(T)e for k < B; p_B is the rest.

**Waits.** For each size k, members_k(w) is the mean number of requests, per batch, that are in a batch of k and wait at most
w. The first of an incomplete batch waits exactly T, an atom. The others came within the last w seconds before T:

    members_k(w) = Σ_i i·αP_{k−1−i}(T − w)·P_i(w)e                                              k < B, w < T

In a full batch the last waits 0, an atom; the first waits ≤ w if B − 1 more come within w; the one with i more after it,
having come before T − w, waits ≤ w if those i come within w, and having come later if the batch fills at all. With Q_i(w) =
P(at least i within w):

    members_B(w) = p_B + αQ_{B−1}(w) + Σ_{i=1}^{B−2} αE_{B−2−i}(T − w)·Q_i(w) + Σ_{i=2}^{B−1} (i − 1)·αP_{B−1−i}(T − w)·Q_i(w)

No integral is left, and only sums of probabilities.
Poisson, λ = 10/s, B = 2, T = 0.1 s: p_1 = e^−1 = 0.368, and of 1.632 requests per batch 0.632 wait 0, 0.368 wait 0.1 s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gnomon_core.errors import bad_request
from gnomon_planner.maps import Counting, Map, convolved
from gnomon_planner.numerics import Array, stationary_of

NEVER = 1e-14  # a probability that counts as none
SAME = 1e-13  # a transition of the chain over batches below this is rounding


@dataclass(frozen=True, slots=True)
class BufferPlan:
    """B, the largest batch, and T in seconds, the longest wait of the first request; T may be infinite.

    Raises:
        GnomonError: 400 `bad_plan`.

    """

    batch: int
    timeout_s: float

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise bad_request("bad_plan", f"A largest batch of {self.batch}.", "A batch has at least 1 request.")
        if math.isnan(self.timeout_s) or self.timeout_s < 0.0:
            raise bad_request("bad_plan", f"A timeout of {self.timeout_s} s.", "A timeout is 0 or more.")


class Buffer:
    """The exact behaviour of one buffer: `phases` α, `sizes` p_1 … p_B, and the members of each size who wait at most w."""

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
        mirrored = np.allclose(self.timeout_s - waits_s, waits_s[::-1], rtol=SAME, atol=0.0)
        after = before[::-1] if mirrored else self._counting.at(waits_s)
        early = (self.phases @ before).reshape(len(waits_s), batch - 1, -1)
        late = after.sum(axis=-1)
        found = np.empty((len(waits_s), batch))
        numbers = np.arange(batch - 1)
        found[:, :-1] = convolved(early, numbers[:, None] * late)
        found[:, -1] = self._members_of_full(early, late)
        return found

    def _members_of_full(self, early: Array, late: Array) -> Array:
        """members_B(w), from αP_j(T − w) and P_j(w)e for j < B − 1, both (waits, B − 1, n)."""
        batch = self.plan.batch
        # at_least[:, i] is Q_i(w), i = 0 … B − 1.
        at_least = 1.0 - np.concatenate([np.zeros_like(late[:, :1]), np.cumsum(late, axis=1)], axis=1)
        found: Array = self.sizes[-1] + at_least[:, batch - 1] @ self.phases
        if batch > 2:  # noqa: PLR2004 - a batch of two has a first and a last
            weights = np.arange(1, batch - 1)[:, None]
            found = found + (early[:, : batch - 2][:, ::-1] * weights * at_least[:, 2:batch]).sum(axis=(1, 2))
            reached, ends = np.broadcast_to(self.phases, early[:, 0].shape), []
            for number in range(batch - 2):
                reached = np.clip((reached - early[:, number]) @ self._step, 0.0, None)
                ends.append(reached)
            found = found + (np.stack(ends[::-1], axis=1) * at_least[:, 1 : batch - 1]).sum(axis=(1, 2))
        return found

    def _begin(self) -> tuple[Array, Array]:
        """α and p."""
        if self.plan.batch == 1:
            return self.process.embedded, np.ones(1)
        within = self._counting.at(np.array([self.timeout_s]))[0]
        phases = first_phases_of(within[None], self._step, self.process.embedded)[-1, 0]
        sizes = np.empty(self.plan.batch)
        sizes[:-1] = (phases @ within).sum(axis=-1)
        sizes[-1] = max(0.0, 1.0 - sizes[:-1].sum())
        return phases, sizes

    def _timeout_that_matters(self) -> float:
        """T in seconds, or a shorter time within which every batch fills."""
        if self.plan.batch == 1:
            return 0.0
        timeout_s = min(self.plan.timeout_s, self.plan.batch / self.process.rate_rps)
        while timeout_s < self.plan.timeout_s:
            if self._counting.at(np.array([timeout_s]))[0].sum(axis=(0, 2)).max() < NEVER:
                return timeout_s
            timeout_s = min(2.0 * timeout_s, self.plan.timeout_s)
        return timeout_s


def first_phases_of(within: Array, step: Array, arbitrary: Array) -> Array:
    """First phases α for the buffers of each B = 2 … levels + 1 and several T, shape (levels, timeouts, n).

    `within` is P_j(T) for j below `levels`, shape (timeouts, levels, n, n), `step` P and `arbitrary` the phase after an arbitrary
    arrival: where the chain over batches falls apart (every batch of two begins with the same of two alternating phases; or a
    phase lasts for 10¹³ batches), α is what it comes to from there: as many arrivals are in batches of each part, and where
    batches are larger there are fewer.
    """
    count, levels, order = within.shape[:3]
    chains = np.empty((levels, count, order, order))
    reached, ended = np.broadcast_to(np.eye(order), within[:, 0].shape), np.zeros_like(within[:, 0])
    for number in range(levels):
        reached = np.clip((reached - within[:, number]) @ step, 0.0, None)
        ended = ended + within[:, number]
        chains[number] = (ended + reached) @ step
    chains = np.where(chains > SAME, chains, 0.0)
    chains /= chains.sum(axis=-1, keepdims=True)
    found = np.empty(chains.shape[:-1])
    # A phase that every one leads to is part of the only class there is. Reduced to it, the others may be left for ever: a phase
    # in which nothing arrives is.
    leads = np.asarray((chains > 0.0).all(axis=-2))
    last = int(leads.reshape(-1, order).sum(axis=0).argmax())
    connected = leads[..., last]
    turned = np.array([last, *(phase for phase in range(order) if phase != last)])
    found[connected] = stationary_of(chains[connected][:, turned[:, None], turned])[:, turned.argsort()]
    for number, timeout in zip(*np.nonzero(~connected), strict=True):
        # N of a batch that begins in each phase: B, less what is missing of those that did not fill.
        missing = np.arange(number + 1, 0, -1) @ within[timeout, : number + 1].sum(axis=-1)
        found[number, timeout] = _long_run(chains[number, timeout], arbitrary, number + 2.0 - missing)
    return found


def _long_run(chain: Array, start: Array, sizes: Array) -> Array:
    """Long-run distribution of the chain over batches from an arrival, also for a reducible chain (several classes)."""
    count = len(chain)
    if count == 1:
        return np.ones(1)
    reaches = np.linalg.matrix_power(((chain > 0.0) | np.eye(count, dtype=bool)).astype(float), count) > 0.0
    mutual = reaches & reaches.T
    if mutual.all():
        return stationary_of(chain)
    found = np.zeros(count)
    recurrent = (reaches <= mutual).all(axis=1)
    arriving = start.copy()
    if not recurrent.all():
        passing = np.eye(count)[~recurrent][:, ~recurrent] - chain[np.ix_(~recurrent, ~recurrent)]
        arriving[recurrent] += np.linalg.solve(passing.T, start[~recurrent]) @ chain[np.ix_(~recurrent, recurrent)]
    for members in np.unique(mutual[recurrent], axis=0):
        inside = stationary_of(chain[np.ix_(members, members)])
        found[members] = arriving[members].sum() / (inside @ sizes[members]) * inside
    phases: Array = found / found.sum()
    return phases
