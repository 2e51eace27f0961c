"""A Body's model while it has a Shadow: a batch in segments, some of them computed by both at once.

    Body    ▓▓▓▓▓▓▓▓┤ hand over b_S rows ├▓▓ b_B rows ▓▓┤ wait ├ join ├▓▓▓▓▓▓
    Shadow                               ├▓▓▓ b_S rows ▓▓▓▓┤

A run of offloaded blocks is one hand-over and one answer. Whatever the Shadow does, the rows that it was given are still here:
late, gone, broken or of another form, and the Body computes them itself. Three misses in a row end the pair. An answer of the
Shadow is compared in type and shape with what the Body made of its own rows, so that nothing else can enter a batch.

AsyFunc, section 5.2 and Figure 9.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gnomon_core import packets
from gnomon_core.blocks import Layers
from gnomon_core.pairs import Pair
from gnomon_core.shared_memory import aligned
from gnomon_runtime.engine import LoadedProgram
from gnomon_runtime.engine.segments import Segment, segments_between
from gnomon_runtime.engine.weights import ALIGNMENT_BYTES
from gnomon_runtime.pair.buffers import datatype_of, joined
from gnomon_runtime.pair.headers import Kind, Message
from gnomon_runtime.pair.link import MAX_PENDING, Link, Outcome
from gnomon_runtime.pair.patience import Patience, Predictions, patience

MAX_MISSES = 3


@dataclass(frozen=True, slots=True)
class RunTiming:
    """How one hand-over went. `shadow_s` is t_pS with the hand-over there; None where no answer came."""

    begin: int
    end: int
    samples: int
    outcome: Outcome
    expected_s: float
    shadow_s: float | None
    own_s: float
    waited_s: float

    def to_json(self) -> dict[str, Any]:
        return {
            "operations": [self.begin, self.end],
            "samples": self.samples,
            "outcome": self.outcome,
            "expected_ms": _ms(self.expected_s),
            "shadow_ms": None if self.shadow_s is None else _ms(self.shadow_s),
            "own_ms": _ms(self.own_s),
            "waited_ms": _ms(self.waited_s),
        }


class SplitModel:
    """A model, its Shadow's blocks and the way to the Shadow. `over` says why the pair has ended, None while it has not.

    Raises:
        ValueError: the blocks are not the model's.
        GnomonError: 422 where a segment may not run.

    """

    def __init__(self, model: LoadedProgram, layers: Layers, pair: Pair, link: Link, predictions: Predictions) -> None:
        if not all(0 <= block < len(layers.blocks) for block in pair.blocks):
            raise ValueError(f"blocks {pair.blocks} of a model that has {len(layers.blocks)}")
        runs = [(run.begin, run.end) for run in layers.runs(pair.blocks)]
        self.pair = pair
        self.over: str | None = None
        self.timings: list[RunTiming] = []
        self._model = model
        self._link = link
        self._predictions = predictions
        run_of = {ends: number for number, ends in enumerate(runs)}
        self._segments = [
            (segment, run_of.get((segment.border.begin, segment.border.end)))
            for segment in segments_between(model.program, model.weights.tensors, runs)
        ]
        """Each with the number of the run that it is; None for what the Body computes alone."""
        self._rest_s: dict[tuple[int, int], float] = {}
        """By run and batch: what came after it the last time."""
        self._asked: dict[int, tuple[int, int]] = {}
        """Run and samples by the number of the hand-over."""
        self._misses = 0
        self._prepare(layers)

    def samples(self, batch: int) -> int:
        """b_S for a batch of so many."""
        return 0 if self.over is not None else min(self.pair.shadow_samples(batch), batch - 1)

    def run(self, inputs: Sequence[Tensor], left_s: float | None) -> tuple[Tensor, ...]:
        """The model's outputs for a batch that must be done in `left_s` seconds from now; None without a deadline.

        Raises:
            GnomonError, ValueError: as the executor's own run.

        """
        batch = self._model.executor.check_inputs(inputs)
        samples = self.samples(batch)
        began_s = time.monotonic()
        self.timings = []
        ends_s: dict[int, float] = {}
        program = self._model.program
        values = dict(zip(program.inputs, inputs, strict=True))
        with torch.inference_mode():
            for segment, index in self._segments:
                border = segment.border
                given = [values[name] for name in border.reads]
                for name in border.passing:
                    del values[name]
                if index is not None and self.over is None:
                    budget_s = None if left_s is None else left_s - (time.monotonic() - began_s)
                    made = self._together(segment, given, (index, batch, samples), budget_s)
                    ends_s[index] = time.monotonic()
                else:
                    made = segment.run(batch, given)
                values |= zip(border.makes, made, strict=True)
                del given, made
        done_s = time.monotonic()
        self._rest_s |= {(index, batch): done_s - end_s for index, end_s in ends_s.items()}
        outputs = tuple(values[name] for name in program.outputs)
        self._model.executor.check_outputs(batch, outputs)
        return outputs

    def _together(
        self, segment: Segment, given: list[Tensor], which: tuple[int, int, int], budget_s: float | None
    ) -> Sequence[Tensor]:
        """What a run makes of the whole batch, of which the Shadow computes the last samples. `which`: run, batch, samples."""
        index, batch, samples = which
        own = batch - samples
        if not given or not _by_rows(given, batch):
            return self._alone(segment, given, batch)
        began_s = time.monotonic()
        trouble = self._told(segment, given, which)
        told_s = time.monotonic()
        mine = segment.run(own, [tensor[:own] for tensor in given])
        if not _by_rows(mine, own):
            return self._alone(segment, given, batch)
        own_s = time.monotonic() - told_s
        expected_s = self._predictions.seconds(index, samples, own_s, own)
        if budget_s is not None:
            budget_s -= own_s * samples / own + self._rest_s.get((index, batch), 0.0)
        answer = trouble or self._answer(mine, samples, began_s, patience(expected_s, budget_s))
        waited_s = time.monotonic() - told_s - own_s
        shadow_s = None
        if isinstance(answer, Message):
            # What it says it took cannot have been longer than the time that passed.
            shadow_s = told_s - began_s + min(answer.compute_s, time.monotonic() - told_s)
            self._predictions.learn(index, samples, shadow_s)
        outcome = Outcome.ANSWERED if isinstance(answer, Message) else answer
        self._count(outcome)
        self.timings.append(
            RunTiming(segment.border.begin, segment.border.end, samples, outcome, expected_s, shadow_s, own_s, waited_s)
        )
        if isinstance(answer, Message):
            theirs: Sequence[Tensor] = self._link.back.read(answer.rows)
        else:
            theirs = segment.run(samples, [_aligned_rows(tensor, own) for tensor in given])
        return [joined(first, second) for first, second in zip(mine, theirs, strict=True)]

    def _told(self, segment: Segment, given: list[Tensor], which: tuple[int, int, int]) -> Outcome | None:
        """Hand the Shadow its samples. None when it has been told."""
        index, batch, samples = which
        try:
            trouble = self._link.hand_over(segment.border.begin, segment.border.end, given, batch - samples)
        except packets.PeerGoneError:
            return Outcome.GONE
        self._asked[self._link.sequence] = (index, samples)
        for message in self._link.late:
            if message.sequence in self._asked and message.kind is Kind.DONE:
                self._predictions.learn(*self._asked.pop(message.sequence), message.compute_s)
        self._link.late.clear()
        while len(self._asked) > MAX_PENDING:
            del self._asked[next(iter(self._asked))]
        return trouble

    def _answer(self, mine: Sequence[Tensor], samples: int, began_s: float, wait: Patience) -> Message | Outcome:
        """The Shadow's answer, if it comes in time and fits what the Body made of its own rows."""
        try:
            answer = self._link.take_back(began_s + wait.seconds)
        except packets.PeerGoneError:
            return Outcome.GONE
        if isinstance(answer, Message):
            forms = [(datatype_of(tensor), tuple(tensor.shape[1:]), samples) for tensor in mine]
            if [(row.datatype, row.shape[1:], answer.samples) for row in answer.rows] != forms:
                return Outcome.NONSENSE
        elif answer is Outcome.LATE and not wait.whole:
            return Outcome.HURRIED
        return answer

    def _alone(self, segment: Segment, given: list[Tensor], batch: int) -> Sequence[Tensor]:
        """A run that is no run of samples: nobody but the Body can compute it."""
        self.over = f"the values of operations {segment.border.begin} to {segment.border.end} are not one row a sample"
        return segment.run(batch, given)

    def _count(self, outcome: Outcome) -> None:
        if outcome is Outcome.GONE:
            self.over = "the Shadow has gone"
        elif outcome is Outcome.ANSWERED:
            self._misses = 0
        elif outcome is not Outcome.HURRIED:
            self._misses += 1
            if self._misses >= MAX_MISSES:
                self.over = f"{MAX_MISSES} misses in a row, the last one {outcome}"

    def _prepare(self, layers: Layers) -> None:
        """Have as much of the buffers ready as the largest split of these runs needs."""
        most = max((self.pair.shadow_samples(batch) for batch in range(1, len(self.pair.split) + 1)), default=0)
        borders = [segment.border for segment, index in self._segments if index is not None]
        for buffer, names in (
            (self._link.to, [border.reads for border in borders]),
            (self._link.back, [border.makes for border in borders]),
        ):
            buffer.prepare(
                max((sum(aligned(most * layers.value_bytes.get(name, 0)) for name in run) for run in names), default=0)
            )


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 3)


def _by_rows(tensors: Sequence[Tensor], rows: int) -> bool:
    return all(tensor.dim() and tensor.shape[0] == rows for tensor in tensors)


def _aligned_rows(tensor: Tensor, first: int) -> Tensor:
    """The rows from `first` on, where a tensor of their own would have them: kernels give other last bits elsewhere."""
    rows = tensor[first:]
    return rows.clone() if rows.data_ptr() % ALIGNMENT_BYTES else rows
