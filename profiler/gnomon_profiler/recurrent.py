"""LSTM and GRU layers as operations that a layer program holds: one step of time after the other.

ATen has a whole stack of layers as one operator, whose kernels keep workspaces and choose by hardware. torch.export replaces it
by these functions when it captures, so the sequence has a fixed length. The product with the input is computed for all steps at
once; the steps multiply the hidden state alone:

    x (time × batch × features) ─▶ x·W_ihᵀ + b_ih ─▶ for each step: + h·W_hhᵀ + b_hh ─▶ gates ─▶ h
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

Step: TypeAlias = Callable[[Tensor, Sequence[Tensor], Tensor, Tensor | None], tuple[Tensor, ...]]
"""Returns the next state, whose first tensor is the output, from the product with the input, the state, W_hh and b_hh."""


def _lstm_step(gates_input: Tensor, state: Sequence[Tensor], weight: Tensor, bias: Tensor | None) -> tuple[Tensor, ...]:
    hidden, cell = state
    enters, forgets, candidate, leaves = (gates_input + functional.linear(hidden, weight, bias)).chunk(4, -1)
    cell = torch.sigmoid(forgets) * cell + torch.sigmoid(enters) * torch.tanh(candidate)
    return torch.sigmoid(leaves) * torch.tanh(cell), cell


def _gru_step(gates_input: Tensor, state: Sequence[Tensor], weight: Tensor, bias: Tensor | None) -> tuple[Tensor, ...]:
    (hidden,) = state
    reset_x, update_x, new_x = gates_input.chunk(3, -1)
    reset_h, update_h, new_h = functional.linear(hidden, weight, bias).chunk(3, -1)
    update = torch.sigmoid(update_x + update_h)
    new = torch.tanh(new_x + torch.sigmoid(reset_x + reset_h) * new_h)
    return (new + update * (hidden - new),)


def _rnn_step(activation: Callable[[Tensor], Tensor]) -> Step:
    def step(gates_input: Tensor, state: Sequence[Tensor], weight: Tensor, bias: Tensor | None) -> tuple[Tensor, ...]:
        return (activation(gates_input + functional.linear(state[0], weight, bias)),)

    return step


def _run(
    step: Step, tensor: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor], *, biased: bool, bidirectional: bool
) -> tuple[Tensor, ...]:
    """All layers: the last one's output for each step, and each kind of state at the end, of all layers and directions."""
    width = 4 if biased else 2
    directions = 2 if bidirectional else 1
    ends: list[tuple[Tensor, ...]] = []
    for layer in range(len(weights) // width // directions):
        outputs = []
        for direction in range(directions):
            number = layer * directions + direction
            of_input, of_state, *biases = weights[number * width : (number + 1) * width]
            steps = functional.linear(tensor, of_input, biases[0] if biased else None).unbind(0)
            state: tuple[Tensor, ...] = tuple(layer_states[number] for layer_states in states)
            step_outputs = []
            for product in reversed(steps) if direction else steps:
                state = step(product, state, of_state, biases[1] if biased else None)
                step_outputs.append(state[0])
            outputs.append(torch.stack(step_outputs[::-1] if direction else step_outputs))
            ends.append(state)
        tensor = torch.cat(outputs, -1) if bidirectional else outputs[0]
    return tensor, *(torch.stack(kind) for kind in zip(*ends, strict=True))


def lstm_layers(tensor: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor], *settings: Any) -> tuple[Tensor, ...]:
    """`aten.lstm.input`: the output, and hidden and cell states at the end."""
    if states[0].shape[-1] != states[1].shape[-1]:
        raise ValueError("an LSTM with projections (proj_size) is not supported")
    return _layers(_lstm_step, tensor, states, weights, settings)


def gru_layers(tensor: Tensor, state: Tensor, weights: Sequence[Tensor], *settings: Any) -> tuple[Tensor, ...]:
    """`aten.gru.input`: the output, and the states at the end."""
    return _layers(_gru_step, tensor, (state,), weights, settings)


def _simple(step: Step) -> Callable[..., tuple[Tensor, ...]]:
    """`aten.rnn_tanh.input` and `aten.rnn_relu.input`."""

    def run(tensor: Tensor, state: Tensor, weights: Sequence[Tensor], *settings: Any) -> tuple[Tensor, ...]:
        return _layers(step, tensor, (state,), weights, settings)

    return run


def _layers(
    step: Step, tensor: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor], settings: Sequence[Any]
) -> tuple[Tensor, ...]:
    """`settings` are the operators': has_biases, num_layers, dropout, train, bidirectional, batch_first."""
    biased, _, _, _, bidirectional, batch_first = settings
    by_time = tensor.transpose(0, 1) if batch_first else tensor
    output, *ends = _run(step, by_time, states, weights, biased=biased, bidirectional=bidirectional)
    return output.transpose(0, 1) if batch_first else output, *ends


_aten: Any = torch.ops.aten
DECOMPOSITIONS: Mapping[Any, Callable[..., Any]] = {
    _aten.lstm.input: lstm_layers,
    _aten.gru.input: gru_layers,
    _aten.rnn_tanh.input: _simple(_rnn_step(torch.tanh)),
    _aten.rnn_relu.input: _simple(_rnn_step(torch.relu)),
}
"""Functions that torch.export puts in place of ATen's recurrent layers."""
