"""The little linear algebra that arrival processes need beyond numpy's.

Everything here is about generators of Markov chains: small matrices (1 to some 64 rows) whose off-diagonal entries are rates.
Their exponential is computed from non-negative numbers only, so that no digits are lost to cancellation; scipy would cost 0.2 s
of every command for this one function.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float64]
Vector = npt.NDArray[np.float64]


def expm_generator(generator: Matrix, time_s: float) -> Matrix:
    """e^(Q·t) for a generator, or a sub-generator as D0: non-negative off the diagonal, row sums at most 0.

    With q the largest rate, e^(Qt) = Σ Poisson(k; qt)·P^k for the chain P = I + Q/q. The time is halved until qt ≤ 1/2, where 15
    terms reach 1e-20, and the result squared as often.
    """
    identity = np.eye(len(generator))
    rate = float(-generator.diagonal().min())
    if rate <= 0.0 or time_s <= 0.0:
        return identity
    halvings = max(0, math.ceil(math.log2(2.0 * rate * time_s)))
    step = rate * time_s / 2.0**halvings
    chain = np.clip(identity + generator / rate, 0.0, None)
    weight = math.exp(-step)
    power, result = identity, weight * identity
    for term in range(1, 16):
        weight *= step / term
        power = power @ chain
        result = result + weight * power
    for _ in range(halvings):
        result = result @ result
    return result


def stationary_of(rates: Matrix) -> Matrix:
    """The stationary distributions of irreducible chains, shape (…, n) of (…, n, n): θ with θQ = 0, θe = 1.

    Of a generator or of a transition matrix, whose diagonals are not looked at. Solved by state reduction (Grassmann, Taksar and
    Heyman), which never subtracts: rates that differ by many powers of ten, as those of a slow burst beside a quick arrival, keep
    all their digits.
    """
    rates = rates.copy()
    count = rates.shape[-1]
    for state in range(count - 1, 0, -1):
        rates[..., :state, state] /= rates[..., state, :state].sum(axis=-1)[..., None]
        rates[..., :state, :state] += rates[..., :state, state, None] * rates[..., None, state, :state]
    weights = np.zeros(rates.shape[:-1])
    weights[..., 0] = 1.0
    for state in range(1, count):
        weights[..., state] = (weights[..., :state] * rates[..., :state, state]).sum(axis=-1)
    found: Matrix = weights / weights.sum(axis=-1, keepdims=True)
    return found


def irreducible(rates: Matrix) -> bool:
    """Whether every state can be reached from every other one."""
    count = len(rates)
    reached = (rates > 0.0) | np.eye(count, dtype=bool)
    for _ in range(max(1, math.ceil(math.log2(max(2, count))))):
        reached = reached @ reached
    return bool(reached.all())
