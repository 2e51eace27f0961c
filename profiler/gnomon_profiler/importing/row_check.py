"""Compares a captured program with the model that it was captured from, sample by sample.

A file in another format says nothing of whether it treats the samples of a batch apart. The program therefore runs on random
inputs at a batch of 1 and of 3, and each row of each answer must be what the model gives for that sample alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from gnomon_core.errors import GnomonError
from gnomon_core.program import Program, parse_program
from gnomon_profiler.program_runs import Runner
from gnomon_profiler.repository import PROGRAM, WEIGHTS
from gnomon_profiler.weights import read_weights

BATCHES = (1, 3)
TOLERANCE = 1e-3
"""The largest difference as a share of an answer's largest number: half-precision sums differ by it between batch sizes."""
_INTEGERS_BELOW = 2
"""Bound of random integers: 0 and 1 are valid as words, masks and classes."""


def check_rows(module: nn.Module, example: Sequence[Tensor], files: Mapping[str, bytes]) -> None:
    """Run a captured model's program and compare.

    Raises:
        GnomonError: 422 `unsupported_model` where an answer depends on the batch that a sample shares.

    """
    program = parse_program(files[PROGRAM])
    runner = Runner(program, read_weights(files[WEIGHTS], program.weights))
    for batch in BATCHES:
        inputs = [_random(tensor, batch, number) for number, tensor in enumerate(example)]
        answers = _answers(program, runner, inputs, batch)
        for row in range(batch):
            with torch.no_grad():
                expected = module(*(tensor[row : row + 1] for tensor in inputs))
            for name, answer, own in zip(program.outputs, answers, _listed(expected), strict=True):
                if not _close(answer[row : row + 1], own):
                    raise GnomonError(
                        422,
                        "unsupported_model",
                        f"The output {name!r} of a sample differs at a batch of {batch} from the sample's own: the model mixes "
                        "the samples of a batch, or is written for one batch size.",
                        "Export it with a dynamic batch axis, without operations across samples.",
                    )


def _random(tensor: Tensor, batch: int, seed: int) -> Tensor:
    drawn = torch.Generator().manual_seed(seed)
    shape = (batch, *tensor.shape[1:])
    if tensor.is_floating_point():
        return torch.randn(shape, generator=drawn).to(tensor.dtype)
    return torch.randint(0, _INTEGERS_BELOW, shape, generator=drawn).to(tensor.dtype)


def _answers(program: Program, runner: Runner, inputs: Sequence[Tensor], batch: int) -> list[Tensor]:
    values = dict(zip(program.inputs, inputs, strict=True))
    answers = {name: tensor for name, tensor in values.items() if name in program.outputs}
    for _, results in runner.walk(0, len(program.operations), values, batch):
        answers |= {name: tensor for name, tensor in results.items() if name in program.outputs}
    return [answers[name] for name in program.outputs]


def _listed(answer: object) -> list[Tensor]:
    if isinstance(answer, Tensor):
        return [answer]
    if isinstance(answer, Mapping):
        return list(answer.values())
    assert isinstance(answer, Sequence)
    return list(answer)


def _close(answer: Tensor, expected: Tensor) -> bool:
    if answer.shape != expected.shape or answer.dtype != expected.dtype:
        return False
    if not expected.is_floating_point():
        return bool(torch.equal(answer, expected))
    finite = torch.where(torch.isfinite(expected), expected.abs(), 0)
    bound = TOLERANCE * max(float(finite.max()) if finite.numel() else 0.0, 1e-6)
    return bool(torch.allclose(answer, expected, rtol=0, atol=bound, equal_nan=True))
