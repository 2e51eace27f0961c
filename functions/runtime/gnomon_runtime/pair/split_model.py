"""A Body's model while it has Shadows: a batch is computed in segments, some of them by Body and Shadows in parallel.

    Body      ▓▓▓▓▓▓▓▓┤ hand over b_S1, b_S2 rows ├▓▓ b_B rows ▓▓┤ wait ├ join ├▓▓▓▓▓▓
    Shadow 1                                      ├▓▓▓ b_S1 rows ▓▓▓▓┤
    Shadow 2                                      ├▓▓▓ b_S2 rows ▓▓▓▓▓▓┤

A run of offloaded blocks is one hand-over to each Shadow and one answer of each. The rows of a batch are the Body's first, then
those of its first Shadow, and so on. The Body keeps the rows that it hands over: if an answer is late, missing, broken or of
another form, it computes those rows itself, and only those. Three misses in a row end that pair. A Shadow's answer must have the
types and shapes of the Body's own results, so that nothing else can enter a batch.

AsyFunc, section 5.2 and Figure 9, which is this with one Shadow.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gnomon_core.blocks import Layers
from gnomon_core.pairs import shares
from gnomon_runtime.engine.executor import check_inputs, check_outputs
from gnomon_runtime.engine.loaded_model import LoadedModel, ModelSegment
from gnomon_runtime.engine.weights import ALIGNMENT_BYTES
from gnomon_runtime.pair.headers import Message
from gnomon_runtime.pair.link import Outcome, joined
from gnomon_runtime.pair.partner import Partner, Share, slack, wait_timeout


@dataclass(frozen=True, slots=True)
class RunTiming:
    """The timings of one hand-over. `shadow_s` is t_pS including the hand-over to the Shadow; None without an answer."""

    shadow: str
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
            "shadow": self.shadow,
            "operations": [self.begin, self.end],
            "samples": self.samples,
            "outcome": self.outcome,
            "expected_ms": _ms(self.expected_s),
            "shadow_ms": None if self.shadow_s is None else _ms(self.shadow_s),
            "own_ms": _ms(self.own_s),
            "waited_ms": _ms(self.waited_s),
        }


@dataclass(frozen=True, slots=True)
class _HandOver:
    """A share that has been handed over, or could not be."""

    share: Share
    own_samples: int
    """The number of samples that the Body computes itself."""
    trouble: Outcome | None
    started_s: float
    sent_s: float


class SplitModel:
    """A model with the Shadows that compute `blocks` of it, in the order of their rows.

    Raises:
        GnomonError: 422 where a segment may not run.

    """

    def __init__(self, model: LoadedModel, layers: Layers, partners: Iterable[Partner], blocks: Iterable[int]) -> None:
        self.partners = tuple(partners)
        self.timings: list[RunTiming] = []
        self._model = model
        self._runs = tuple((run.begin, run.end) for run in layers.runs(blocks))
        self._segments = model.segments(self._runs)
        self._remaining_s: dict[tuple[tuple[int, int], int], float] = {}
        """Seconds from the end of a run to the end of the batch, as last measured, by run and batch."""

    def samples(self, batch: int) -> int:
        """The largest number of samples of such a batch that the Body hands over in a run."""
        return max((sum(share.samples for share in self._shares(run, batch)) for run in self._runs), default=0)

    def send_hint(self, batch: int) -> None:
        """Send wake-up hints for a batch of this size to the Shadows that its first segment needs."""
        self._send_hints(0, batch)

    def _send_hints(self, position: int, batch: int) -> None:
        """Send wake-up hints to the Shadows of the segment at this position, which is next."""
        border = self._segments[position].border
        if (run := (border.begin, border.end)) in self._runs:
            for share in self._shares(run, batch):
                share.partner.send_hint()

    def _shares(self, run: tuple[int, int], batch: int) -> list[Share]:
        """The shares of the Shadows that compute rows of this run; the Body has the first rows."""
        able = [partner for partner in self.partners if partner.computes(run)]
        amounts = shares([partner.pair for partner in able], batch)
        first = batch - sum(amounts)
        usable_shares: list[Share] = []
        for partner, samples in zip(able, amounts, strict=True):
            if samples > 0:
                usable_shares.append(Share(partner, first, samples))
                first += samples
        return usable_shares

    def run(self, inputs: Sequence[Tensor], left_s: float | None) -> tuple[Tensor, ...]:
        """The model's outputs for a batch that must be done in `left_s` seconds from now; None without a deadline.

        Raises:
            GnomonError, ValueError: as the executor's own run.

        """
        batch = check_inputs(self._model.signature, inputs)
        started_s = time.monotonic()
        self.timings = []
        ends_s: dict[tuple[int, int], float] = {}
        program = self._model.program
        values = dict(zip(program.inputs, inputs, strict=True))
        with torch.inference_mode():
            for position, segment in enumerate(self._segments, 1):
                border = segment.border
                run = (border.begin, border.end)
                reads = [values[name] for name in border.reads]
                for name in border.passing:
                    del values[name]
                if run in self._runs and (shadow_shares := self._shares(run, batch)):
                    budget_s = None if left_s is None else left_s - (time.monotonic() - started_s)
                    results = self._compute_with_shadows(segment, reads, shadow_shares, budget_s)
                    ends_s[run] = time.monotonic()
                else:
                    has_next = position < len(self._segments)
                    results = segment.run(batch, reads, partial(self._send_hints, position, batch) if has_next else None)
                values |= zip(border.makes, results, strict=True)
                del reads, results
        done_s = time.monotonic()
        self._remaining_s |= {(run, batch): done_s - end_s for run, end_s in ends_s.items()}
        outputs = tuple(values[name] for name in program.outputs)
        check_outputs(self._model.signature, batch, outputs)
        return outputs

    def _compute_with_shadows(
        self, segment: ModelSegment, inputs: list[Tensor], shadow_shares: list[Share], budget_s: float | None
    ) -> Sequence[Tensor]:
        """The values of a run for the whole batch, of which the Shadows compute the last samples."""
        run, own_samples = (segment.border.begin, segment.border.end), shadow_shares[0].first
        batch = shadow_shares[-1].first + shadow_shares[-1].samples
        if not inputs or not _by_rows(inputs, batch):
            return self._compute_alone(segment, inputs, batch)
        handed_over = [_hand_over(run, inputs, share, own_samples) for share in shadow_shares]
        started_s = time.monotonic()
        own_rows = segment.run(own_samples, [tensor[:own_samples] for tensor in inputs])
        if not _by_rows(own_rows, own_samples):
            return self._compute_alone(segment, inputs, batch)
        own_s = time.monotonic() - started_s
        # If no Shadow answers in time, the Body must compute all of their samples, and then the rest of the model.
        again_s, remaining_s = own_s * (batch - own_samples) / own_samples, self._remaining_s.get((run, batch), 0.0)
        slack_s = slack(budget_s, time.monotonic() - handed_over[0].started_s, again_s, remaining_s)
        answers = [self._answer(run, hand_over, own_rows, own_s, slack_s) for hand_over in handed_over]
        parts = [
            own_rows,
            *(self._rows(segment, inputs, share, answer) for share, answer in zip(shadow_shares, answers, strict=True)),
        ]
        return [joined(*tensors) for tensors in zip(*parts, strict=True)]

    def _answer(
        self, run: tuple[int, int], handed_over: _HandOver, own_rows: Sequence[Tensor], own_s: float, slack_s: float | None
    ) -> Message | None:
        """A Shadow's answer for its share; None if it has failed. Records the timing and the outcome."""
        partner, samples = handed_over.share.partner, handed_over.share.samples
        expected_s = partner.expected_s(run, samples, own_s, handed_over.own_samples)
        started_s = time.monotonic()
        answer = handed_over.trouble or partner.answer(
            own_rows, samples, handed_over.started_s, wait_timeout(expected_s, slack_s)
        )
        now_s = time.monotonic()
        shadow_s = None
        if isinstance(answer, Message):
            # The duration that the Shadow reports cannot be longer than the time that passed.
            shadow_s = handed_over.sent_s - handed_over.started_s + min(answer.compute_s, now_s - handed_over.sent_s)
            partner.learn(run, samples, shadow_s)
        outcome = Outcome.ANSWERED if isinstance(answer, Message) else answer
        partner.count(outcome)
        waited_s = now_s - started_s
        self.timings.append(RunTiming(partner.shadow, *run, samples, outcome, expected_s, shadow_s, own_s, waited_s))
        return answer if isinstance(answer, Message) else None

    def _rows(self, segment: ModelSegment, inputs: list[Tensor], share: Share, answer: Message | None) -> Sequence[Tensor]:
        """The rows of a Shadow's share: from its answer, or computed here without one."""
        if answer is not None:
            return share.partner.link.back.read(answer.rows)
        return segment.run(share.samples, [_aligned(rows) for rows in share.of(inputs)])

    def _compute_alone(self, segment: ModelSegment, inputs: list[Tensor], batch: int) -> Sequence[Tensor]:
        """Compute a run on the Body alone and end all pairs: the values of this run are not one row per sample."""
        for partner in self.partners:
            partner.over = f"the values of operations {segment.border.begin} to {segment.border.end} are not one row a sample"
        return segment.run(batch, inputs)


def _hand_over(run: tuple[int, int], inputs: list[Tensor], share: Share, own_samples: int) -> _HandOver:
    started_s = time.monotonic()
    trouble = share.partner.hand_over(run, share.of(inputs))
    return _HandOver(share, own_samples, trouble, started_s, time.monotonic())


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 3)


def _by_rows(tensors: Sequence[Tensor], rows: int) -> bool:
    return all(tensor.dim() and tensor.shape[0] == rows for tensor in tensors)


def _aligned(rows: Tensor) -> Tensor:
    """Copy rows to the alignment of a new tensor: at another alignment, kernels give other last bits."""
    return rows.clone() if rows.data_ptr() % ALIGNMENT_BYTES else rows
