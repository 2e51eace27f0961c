"""One Shadow as its Body sees it: what it does, the way to it, how long it takes, and how often it has failed of late.

A Body may have several. Each has its own socket and buffers, its own patience and misses, and its own end: what one of them does
costs the others nothing. `over` says why it has ended, None while it has not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from gnomon_core import packets
from gnomon_core.blocks import Layers
from gnomon_core.pairs import Pair
from gnomon_core.shared_memory import aligned
from gnomon_runtime.pair.buffers import datatype_of
from gnomon_runtime.pair.headers import Kind, Message
from gnomon_runtime.pair.link import MAX_PENDING, DataPath, Outcome
from gnomon_runtime.pair.patience import Patience, Predictions

MAX_MISSES = 3
MAX_HURRIED = 20
"""Hand-overs without an answer, of batches that had less time than one should take."""


@dataclass(frozen=True, slots=True)
class Share:
    """The samples of a batch that a Shadow computes in a run: `samples` of them from row `first` on."""

    partner: Partner
    first: int
    samples: int

    def of(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Their rows."""
        return [tensor[self.first : self.first + self.samples] for tensor in tensors]


class Partner:
    """A Shadow of this Body. `predictions` are of `pair`'s runs.

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
        self._asked: dict[int, tuple[int, int]] = {}
        """Run and samples by the number of the hand-over."""
        self._misses = self._hurried = 0
        most = max((pair.shadow_samples(batch) for batch in range(1, len(pair.split) + 1)), default=0)
        sizes = layers.value_bytes
        for buffer, moved in ((link.to, [run.reads for run in runs]), (link.back, [run.makes for run in runs])):
            # As much of it ready as the largest split of these runs needs.
            buffer.prepare(max((sum(aligned(most * sizes.get(name, 0)) for name in names) for names in moved), default=0))

    def computes(self, run: tuple[int, int]) -> bool:
        """Whether it can be handed these operations. While blocks change, one Shadow of a Body has them before the others."""
        return self.over is None and self.link.ready and run in self._runs

    def foretell(self) -> None:
        """Let it be awake when its rows come."""
        if self.over is None and self.link.ready:
            self.link.foretell()

    def hand_over(self, run: tuple[int, int], rows: Sequence[Tensor]) -> Outcome | None:
        """Give it these rows of what the run reads. None when it has been told."""
        try:
            trouble = self.link.hand_over(*run, rows, 0)
        except packets.PeerGoneError:
            return Outcome.GONE
        self._asked[self.link.sequence] = (self._runs[run], rows[0].shape[0])
        for message in self.link.late:
            if message.sequence in self._asked and message.kind is Kind.DONE:
                self._predictions.learn(*self._asked.pop(message.sequence), message.compute_s)
        self.link.late.clear()
        while len(self._asked) > MAX_PENDING:
            del self._asked[next(iter(self._asked))]
        return trouble

    def expected_s(self, run: tuple[int, int], samples: int, own_s: float, own: int) -> float:
        """t_pS, where the Body took `own_s` for its own samples."""
        return self._predictions.seconds(self._runs[run], samples, own_s, own)

    def learn(self, run: tuple[int, int], samples: int, shadow_s: float) -> None:
        """It took this long."""
        self._predictions.learn(self._runs[run], samples, shadow_s)

    def answer(self, mine: Sequence[Tensor], samples: int, began_s: float, wait: Patience) -> Message | Outcome:
        """Its answer, if it comes in time and fits what the Body made of its own rows."""
        try:
            answer = self.link.take_back(began_s + wait.seconds)
        except packets.PeerGoneError:
            return Outcome.GONE
        if isinstance(answer, Message):
            forms = [(datatype_of(tensor), tuple(tensor.shape[1:]), samples) for tensor in mine]
            if [(row.datatype, row.shape[1:], answer.samples) for row in answer.rows] != forms:
                return Outcome.NONSENSE
        elif answer is Outcome.LATE and not wait.blames:
            return Outcome.HURRIED
        return answer

    def count(self, outcome: Outcome) -> None:
        """A hand-over has ended so."""
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
