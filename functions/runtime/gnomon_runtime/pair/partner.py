"""A Shadow as its Body sees it: its share, the link to it, its latency, and its recent failures.

A Body may have several. Each has its own socket, buffers, timeout, miss count and end: no Shadow affects the others. `over` is
the reason why the pair has ended, None while it is active.

The timeout of a Body's wait for its Shadow.

    wait = max( 2 × the predicted t_pS, 5 ms ), from the hand-over on, and no longer than the batch's slack

The slack is the time until the batch's deadline, less the time that the Body needs to compute the Shadow's samples and the rest
of the model. If the slack ends before the Body's own samples are done, only the Shadow's answer can meet the deadline: the Body
then waits as long as the rest of the model allows. Profiles can be outdated: measured times of the Shadow, late answers included,
raise the prediction up to four times. A Shadow on another node cannot measure the network: there the time until its answer
counts.

A miss is blamed on the Shadow if it had the predicted time, and at least 5 ms. If a wait cut short by the slack were never
blamed, a frozen Shadow would cost every urgent batch its slack for ever. Twenty unblamed misses without an answer in between also
end the pair: either no batch has enough time for the Shadow, or the Shadow is frozen.

Example: predicted 20 ms, and the last answers took 30 ms: wait 2 × 30 = 60 ms. The Body takes 15 ms for its own samples. The
batch has 90 ms left, of which the Shadow's samples would take 40 here and the rest of the model 10: the slack is 40, so wait 40
ms; a miss is blamed on the Shadow. With 70 ms left the slack is 20, and a miss is not blamed. With 60 it is 10, less than the 15:
only the Shadow can meet the deadline, so wait 50 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from gnomon_core import packets
from gnomon_core.blocks import Layers
from gnomon_core.pairs import Pair
from gnomon_core.shared_memory import aligned
from gnomon_runtime.pair.headers import Kind, Message
from gnomon_runtime.pair.link import MAX_PENDING, DataPath, Outcome, datatype_of

FACTOR = 2.0
LEAST_S = 0.005
MAX_CORRECTION = 4.0
WEIGHT_OF_LAST = 0.3
"""The weight of the newest measurement in the running mean."""


@dataclass(slots=True)
class Predictions:
    """Predicted t_pS by run and samples. `expected_ms` is the profile's table, empty without a profile."""

    expected_ms: Sequence[Sequence[float]] = ()
    _correction: dict[int, float] = field(default_factory=dict)

    def seconds(self, run: int, samples: int, own_s: float, own_samples: int) -> float:
        """The Shadow's predicted seconds for its samples of a run: from the profile, else from the Body's time per sample."""
        return self._table_s(run, samples, own_s * samples / max(own_samples, 1)) * self._correction.get(run, 1.0)

    def learn(self, run: int, samples: int, measured_s: float) -> None:
        """Correct the prediction by a measured time, in seconds. Without a table nothing is corrected."""
        table_s = self._table_s(run, samples, 0.0)
        if table_s > 0:
            before = self._correction.get(run, 1.0)
            mean = (1 - WEIGHT_OF_LAST) * before + WEIGHT_OF_LAST * measured_s / table_s
            self._correction[run] = min(max(mean, 1.0), MAX_CORRECTION)

    def _table_s(self, run: int, samples: int, otherwise_s: float) -> float:
        row = self.expected_ms[run] if run < len(self.expected_ms) else ()
        return row[samples - 1] / 1e3 if 1 <= samples <= len(row) else otherwise_s


@dataclass(frozen=True, slots=True)
class WaitTimeout:
    """The timeout of a hand-over in seconds, and whether a miss is blamed on the Shadow."""

    seconds: float
    blames: bool


def slack(left_s: float | None, spent_s: float, again_s: float, remaining_s: float) -> float | None:
    """Seconds that a batch can wait after a hand-over, at which `left_s` were left until its deadline; None without a deadline.

    The Body has spent `spent_s` on its own samples, and would need `again_s` for the Shadow's and `remaining_s` for the rest.
    """
    if left_s is None:
        return None
    slack_s = left_s - again_s - remaining_s
    return slack_s if slack_s >= spent_s else left_s - remaining_s


def wait_timeout(predicted_s: float, slack_s: float | None) -> WaitTimeout:
    """The timeout of a hand-over whose batch has this slack, counted from the hand-over; a slack of None means no deadline."""
    wanted_s = max(FACTOR * predicted_s, LEAST_S)
    if slack_s is None or slack_s >= wanted_s:
        return WaitTimeout(wanted_s, blames=True)
    return WaitTimeout(max(slack_s, 0.0), blames=slack_s >= max(predicted_s, LEAST_S))


MAX_MISSES = 3
MAX_HURRIED = 20
"""The most hand-overs in a row without an answer, of batches that had less time than a hand-over should take."""


@dataclass(frozen=True, slots=True)
class Share:
    """The samples of a batch that a Shadow computes in a run: `samples` of them from row `first` on."""

    partner: Partner
    first: int
    samples: int

    def of(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The rows of these tensors that belong to the share."""
        return [tensor[self.first : self.first + self.samples] for tensor in tensors]


class Partner:
    """A Shadow of this Body. `predictions` are for the runs of `pair`.

    Raises:
        ValueError: the blocks are not the model's.

    """

    def __init__(self, shadow: str, pair: Pair, link: DataPath, predictions: Predictions, layers: Layers) -> None:
        if not all(0 <= block < len(layers.blocks) for block in pair.blocks):
            raise ValueError(f"blocks {pair.blocks} of a model that has {len(layers.blocks)}")
        self.shadow = shadow
        self.pair = pair
        self.link = link
        self.over: str | None = None
        self._predictions = predictions
        runs = layers.runs(pair.blocks)
        self._runs = {(run.begin, run.end): number for number, run in enumerate(runs)}
        self._pending: dict[int, tuple[int, int]] = {}
        """Run and samples by the number of the hand-over."""
        self._misses = self._hurried = 0
        most = max((pair.shadow_samples(batch) for batch in range(1, len(pair.split) + 1)), default=0)
        sizes = layers.value_bytes
        for buffer, moved in ((link.to, [run.reads for run in runs]), (link.back, [run.makes for run in runs])):
            # Touch the pages that the largest split of these runs needs, so that no batch pays for page faults.
            buffer.prepare(max((sum(aligned(most * sizes.get(name, 0)) for name in names) for names in moved), default=0))

    def computes(self, run: tuple[int, int]) -> bool:
        """True if the Shadow can compute this run. While blocks change, a Body's Shadows do not all hold the same blocks."""
        return self.over is None and self.link.ready and run in self._runs

    def send_hint(self) -> None:
        """Send a wake-up hint to the Shadow before its rows."""
        if self.over is None and self.link.ready:
            self.link.send_hint()

    def hand_over(self, run: tuple[int, int], rows: Sequence[Tensor]) -> Outcome | None:
        """Send the Shadow these rows of the run's inputs. None on success, else the outcome."""
        try:
            trouble = self.link.hand_over(*run, rows, 0)
        except packets.PeerGoneError:
            return Outcome.GONE
        self._pending[self.link.sequence] = (self._runs[run], rows[0].shape[0])
        for message in self.link.late:
            if message.sequence in self._pending and message.kind is Kind.DONE:
                self._predictions.learn(*self._pending.pop(message.sequence), message.compute_s)
        self.link.late.clear()
        while len(self._pending) > MAX_PENDING:
            del self._pending[next(iter(self._pending))]
        return trouble

    def expected_s(self, run: tuple[int, int], samples: int, own_s: float, own: int) -> float:
        """Predicted t_pS in seconds, if the Body took `own_s` for its own samples."""
        return self._predictions.seconds(self._runs[run], samples, own_s, own)

    def learn(self, run: tuple[int, int], samples: int, shadow_s: float) -> None:
        """Record the latency of a hand-over."""
        self._predictions.learn(self._runs[run], samples, shadow_s)

    def answer(self, own_results: Sequence[Tensor], samples: int, started_s: float, wait: WaitTimeout) -> Message | Outcome:
        """The Shadow's answer if it arrives in time and has the form of the Body's own rows; else the outcome."""
        try:
            answer = self.link.take_back(started_s + wait.seconds)
        except packets.PeerGoneError:
            return Outcome.GONE
        if isinstance(answer, Message):
            forms = [(datatype_of(tensor), tuple(tensor.shape[1:]), samples) for tensor in own_results]
            if [(row.datatype, row.shape[1:], answer.samples) for row in answer.rows] != forms:
                return Outcome.NONSENSE
        elif answer is Outcome.LATE and not wait.blames:
            return Outcome.HURRIED
        return answer

    def count(self, outcome: Outcome) -> None:
        """Count the outcome of a hand-over; sets `over` after too many misses."""
        if outcome is Outcome.GONE:
            self.over = "the Shadow has gone"
        elif outcome is Outcome.ANSWERED:
            self._misses = self._hurried = 0
        elif outcome is Outcome.HURRIED:
            self._hurried += 1
            if self._hurried >= MAX_HURRIED:
                self.over = f"no answer to {MAX_HURRIED} hand-overs, none of which had the time that it should take"
        else:
            self._misses += 1
            if self._misses >= MAX_MISSES:
                self.over = f"{MAX_MISSES} misses in a row, the last one {outcome}"
