"""Checks that a captured program treats the samples of a batch apart: a batch holds requests of different clients.

The program runs on random inputs at a batch of 1 and of 3, and each row of each answer must be what the model that it was
captured from gives for that sample alone; without that model, what the program itself gives for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from gnomon_core.errors import GnomonError
from gnomon_core.example_inputs import example_inputs
from gnomon_core.program import Program, parse_program
from gnomon_profiler.program_runs import Runner
from gnomon_profiler.repository import PROGRAM, WEIGHTS
from gnomon_profiler.weights import TORCH_TYPES, read_weights

BATCHES = (1, 3)
TOLERANCE = 1e-3
"""The largest difference as a share of an answer's largest number: half-precision sums differ by it between batch sizes."""
_ROUNDINGS = 4
"""The same in roundings of the coarsest floating-point type of the weights, inputs and outputs, where that is more: bfloat16."""


def check_rows(files: Mapping[str, bytes], module: nn.Module | None = None) -> None:
    """Run a captured model's program and compare, with `module` where it is given.

    A program that fails on random values, such as one whose inputs are indices, cannot be compared with itself and passes.

    Raises:
        GnomonError: 422 `unsupported_model` where an answer depends on the batch that a sample shares.

    """
    program = parse_program(files[PROGRAM])
    weights = read_weights(files[WEIGHTS], program.weights)
    runner = Runner(program, weights)
    tolerance = _tolerance(program, weights)

    def alone(row: Sequence[Tensor]) -> list[Tensor]:
        if module is None:
            return _answers(program, runner, row, 1)
        with torch.no_grad():
            return _listed(module(*row))

    for batch in BATCHES:
        arrays = zip(program.signature.inputs, example_inputs(program, batch), strict=True)
        inputs = [torch.from_numpy(array).to(TORCH_TYPES[spec.datatype]) for spec, array in arrays]
        try:
            answers = _answers(program, runner, inputs, batch)
            expected = [alone([tensor[row : row + 1] for tensor in inputs]) for row in range(batch)]
        except (RuntimeError, IndexError, ValueError):
            if module is None:
                return
            raise
        for row, own in enumerate(expected):
            for name, answer, one in zip(program.outputs, answers, own, strict=True):
                if not _close(answer[row : row + 1], one, tolerance):
                    raise GnomonError(
                        422,
                        "unsupported_model",
                        f"The output {name!r} of a sample differs at a batch of {batch} from the sample's own: the model mixes "
                        "the samples of a batch, or is written for one batch size.",
                        "Remove operations across samples, on the first axis; export it with a dynamic batch axis.",
                    )


def _tolerance(program: Program, weights: Mapping[str, Tensor]) -> float:
    specs = (*program.signature.inputs, *program.signature.outputs)
    dtypes = {TORCH_TYPES[spec.datatype] for spec in specs} | {tensor.dtype for tensor in weights.values()}
    return max([TOLERANCE, *(_ROUNDINGS * torch.finfo(dtype).eps for dtype in dtypes if dtype.is_floating_point)])


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


def _close(answer: Tensor, expected: Tensor, tolerance: float) -> bool:
    if answer.shape != expected.shape or answer.dtype != expected.dtype:
        return False
    if not expected.is_floating_point():
        return bool(torch.equal(answer, expected))
    finite = torch.where(torch.isfinite(expected), expected.abs(), 0)
    bound = tolerance * max(float(finite.max()) if finite.numel() else 0.0, 1e-6)
    return bool(torch.allclose(answer, expected, rtol=0, atol=bound, equal_nan=True))
