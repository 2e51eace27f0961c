"""How long a Body waits for its Shadow, as numbers.

    wait = max( 2 × the predicted t_pS, 5 ms ), from the hand-over on, and no longer than the batch's slack

The slack is what is left of the batch's time, which ends with the deadline, after computing the Shadow's samples here and the
rest of the model. Where that is over before the Body's own samples are done, an answer is all that can still be in time: it is
waited for as long as the rest of the model allows. A profile was measured in another hour; what the Shadow itself says it took,
late answers included, raises the prediction up to four times. One on another node does not know what the way takes: there it is
the time until its answer has come.

A miss is the Shadow's once it had the predicted time, and no less than 5 ms: were it nobody's whenever the slack has cut the
wait, a frozen Shadow would cost each batch in a hurry its slack for ever. Of those that are nobody's, twenty without an
answer between them end the pair: no batch has the time that it takes, or it is frozen, and it is of no use either way.

Example: predicted 20 ms, and the last answers took 30 ms: wait 2 × 30 = 60 ms. The Body takes 15 ms for its own samples. The
batch has 90 ms left, of which the Shadow's samples would take 40 here and the rest of the model 10: the slack is 40, so wait 40
ms; a miss then is the Shadow's. With 70 ms left the slack is 20, and it is nobody's. With 60 it is 10, and would be over before
the 15: nothing is in time without the Shadow, and it is waited for until 50.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

FACTOR = 2.0
LEAST_S = 0.005
MAX_CORRECTION = 4.0
WEIGHT_OF_LAST = 0.3
"""Of the newest measurement in the running mean."""


@dataclass(slots=True)
class Predictions:
    """t_pS by run and samples. `expected_ms` is the profile's table, empty where there is none."""

    expected_ms: Sequence[Sequence[float]] = ()
    _correction: dict[int, float] = field(default_factory=dict)

    def seconds(self, run: int, samples: int, own_s: float, own_samples: int) -> float:
        """The Shadow's time for its samples of a run: the profile's, or what the Body took for its own, sample by sample."""
        return self._table_s(run, samples, own_s * samples / max(own_samples, 1)) * self._correction.get(run, 1.0)

    def learn(self, run: int, samples: int, measured_s: float) -> None:
        """The Shadow took this long. Without a table there is nothing to correct."""
        table_s = self._table_s(run, samples, 0.0)
        if table_s > 0:
            before = self._correction.get(run, 1.0)
            mean = (1 - WEIGHT_OF_LAST) * before + WEIGHT_OF_LAST * measured_s / table_s
            self._correction[run] = min(max(mean, 1.0), MAX_CORRECTION)

    def _table_s(self, run: int, samples: int, otherwise_s: float) -> float:
        row = self.expected_ms[run] if run < len(self.expected_ms) else ()
        return row[samples - 1] / 1e3 if 1 <= samples <= len(row) else otherwise_s


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait from the hand-over on, and whether a miss then is the Shadow's."""

    seconds: float
    blames: bool


def slack(left_s: float | None, spent_s: float, again_s: float, rest_s: float) -> float | None:
    """How long after a hand-over a batch can wait for the answer, of which `left_s` was left then; None without a deadline.

    The Body has spent `spent_s` on its own samples since, would take `again_s` for the Shadow's, and `rest_s` for the rest.
    """
    if left_s is None:
        return None
    slack_s = left_s - again_s - rest_s
    return slack_s if slack_s >= spent_s else left_s - rest_s


def patience(predicted_s: float, slack_s: float | None) -> Patience:
    """The wait for a hand-over whose batch has this slack left, counted from the hand-over; None is without a deadline."""
    wanted_s = max(FACTOR * predicted_s, LEAST_S)
    if slack_s is None or slack_s >= wanted_s:
        return Patience(wanted_s, blames=True)
    return Patience(max(slack_s, 0.0), blames=slack_s >= max(predicted_s, LEAST_S))
