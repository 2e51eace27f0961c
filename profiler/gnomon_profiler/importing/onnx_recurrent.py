"""LSTM and GRU of ONNX as torch's: gates in another order, biases apart, an axis for the directions.

ONNX has the time as first axis, the batch as second, and results of shape (time, directions, batch, hidden). Gates of an LSTM are
in the order i, o, f, c and torch's i, f, g, o; those of a GRU z, r, h and torch's r, z, n. Both are captured as torch's are, one
step of time after the other (`gnomon_profiler.recurrent`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gnomon_profiler.importing.onnx_values import Call, Results, Unsupported
from gnomon_profiler.recurrent import gru_layers, lstm_layers

_LSTM_GATES, _GRU_GATES = (0, 2, 3, 1), (1, 0, 2)
_ACTIVATIONS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"]}


def lstm(call: Call) -> Results:
    """`LSTM(X, W, R, B, sequence_lens, initial_h, initial_c, P)`: Y, Y_h, Y_c."""
    if call.has(7):
        raise Unsupported("it has peepholes")
    if call.attribute("input_forget", 0):
        raise Unsupported("it couples input and forget gates")
    directions = _directions(call)
    tensor, hidden, cell = call.tensor(0), _state(call, 5, directions), _state(call, 6, directions)
    weights = _weights(call, _LSTM_GATES)
    output, last, last_cell = lstm_layers(tensor, (hidden, cell), weights, *_settings(directions))
    return _by_direction(output, directions), last, last_cell


def gru(call: Call) -> Results:
    """`GRU(X, W, R, B, sequence_lens, initial_h)`: Y, Y_h."""
    if not call.attribute("linear_before_reset", 0):
        raise Unsupported("its reset gate is applied before the product (linear_before_reset = 0), and torch's behind it")
    directions = _directions(call)
    tensor, hidden = call.tensor(0), _state(call, 5, directions)
    output, last = gru_layers(tensor, hidden, _weights(call, _GRU_GATES), *_settings(directions))
    return _by_direction(output, directions), last


def _settings(directions: int) -> tuple[Any, ...]:
    """Biases, one layer, no dropout, not in training, whether both directions, time first: torch's settings of these layers."""
    return True, 1, 0.0, False, directions > 1, False


def _directions(call: Call) -> int:
    """1 or 2; anything else that torch's cells do not have is refused."""
    direction = call.attribute("direction", "forward")
    if direction not in ("forward", "bidirectional"):
        raise Unsupported(f"the direction {direction!r} is not supported")
    if call.has(4):
        raise Unsupported("its sequences differ in length")
    if "clip" in call.step.attributes or call.attribute("layout", 0):
        raise Unsupported("only layout 0 without clipping is supported")
    directions = 2 if direction == "bidirectional" else 1
    expected = _ACTIVATIONS[call.step.operator] * directions
    if [activation.capitalize() for activation in call.attribute("activations", expected)] != expected:
        raise Unsupported("its activations are not the usual ones")
    return directions


def _state(call: Call, index: int, directions: int) -> Tensor:
    if call.has(index):
        return call.tensor(index)
    tensor = call.tensor(0)
    return tensor.new_zeros(directions, tensor.shape[1], call.attribute("hidden_size"))


def _weights(call: Call, gates: tuple[int, ...]) -> list[Tensor]:
    """The weights of the input and the state, and their biases, of each direction."""
    inputs, states, count = call.tensor(1), call.tensor(2), len(gates)
    hidden = int(states.shape[-1])
    biases = call.optional(3)
    if biases is None:
        biases = inputs.new_zeros(inputs.shape[0], 2 * count * hidden)

    def ordered(tensor: Tensor) -> Tensor:
        parts = torch.split(tensor, hidden)
        return torch.cat([parts[gate] for gate in gates])

    parameters: list[Tensor] = []
    for number in range(int(inputs.shape[0])):
        first, second = torch.split(biases[number], count * hidden)
        parameters += [ordered(inputs[number]), ordered(states[number]), ordered(first), ordered(second)]
    return parameters


def _by_direction(output: Tensor, directions: int) -> Tensor:
    time, batch, width = output.shape
    return output.reshape(time, batch, directions, width // directions).transpose(1, 2)
