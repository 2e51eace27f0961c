"""Turns checked operations into steps on slots.

Every value, weight and constant gets a slot of one list, so that gathering an operation's arguments is one `itemgetter`. A size
that follows the batch is a constant whose slot is filled in for each batch size.

Which callable runs an operator.

Any operator can be called through its overload, whose arguments are parsed by a generic interpreter in 1.5 to 7 µs. For those
that fill most networks torch has a generated binding of the same operator with the same arguments that needs 1 to 5 µs; the
kernels behind both are the same, so the bits are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Any, TypeAlias

import torch

from gnomon_core.program import Argument, BatchSize, Constant, Program, Value, values_in
from gnomon_runtime.engine.allowlist import CheckedOperation, constant
from gnomon_runtime.engine.sizes import RULES, Rule
from gnomon_runtime.engine.torch_support import bindings, callable_of

BINDINGS: Mapping[str, Callable[..., Any]] = {
    "aten.conv2d.default": torch.conv2d,
    "aten.linear.default": bindings.linear,
    "aten.relu.default": torch.relu,
    "aten.hardtanh.default": bindings.hardtanh,
    "aten.silu.default": bindings.silu,
    "aten.hardswish.default": bindings.hardswish,
    "aten.hardsigmoid.default": bindings.hardsigmoid,
    "aten.gelu.default": bindings.gelu,
    "aten.sigmoid.default": torch.sigmoid,
    "aten.tanh.default": torch.tanh,
    "aten.add.Tensor": torch.add,
    "aten.sub.Tensor": torch.sub,
    "aten.mul.Tensor": torch.mul,
    "aten.div.Tensor": torch.div,
    "aten.matmul.default": torch.matmul,
    "aten.cat.default": torch.cat,
    "aten.max_pool2d.default": torch.max_pool2d,
    "aten.avg_pool2d.default": bindings.avg_pool2d,
    "aten.adaptive_avg_pool2d.default": bindings.adaptive_avg_pool2d,
    "aten.pad.default": bindings.pad,
    "aten.permute.default": torch.permute,
    "aten.transpose.int": torch.transpose,
    "aten.layer_norm.default": torch.layer_norm,
    "aten.scaled_dot_product_attention.default": bindings.scaled_dot_product_attention,
}
_BATCH_NORM = "aten._native_batch_norm_legit_no_training.default"


def direct_call(checked: CheckedOperation) -> tuple[Callable[..., Any], tuple[Argument, ...], bool]:
    """The callable, its arguments, and whether it returns several tensors.

    Inference's batch normalisation names three results, of which two are empty; the plain one returns the first alone.
    """
    operation = checked.operation
    if operation.op == _BATCH_NORM and operation.results[1:] == (None, None):
        *tensors, momentum, epsilon = checked.args
        return torch.batch_norm, (*tensors, False, momentum, epsilon, False), False
    return BINDINGS.get(operation.op, callable_of(checked.overload)), checked.args, checked.many


Slots: TypeAlias = list[Any]
Gather: TypeAlias = Callable[[Slots], Sequence[Any]]
Step: TypeAlias = tuple[Callable[..., Any], Gather, int, tuple[tuple[int, int], ...], tuple[int, ...]]
"""What to call, its arguments, the slot of its only result (or -1, and the position and slot of each), the slots to clear."""


@dataclass(frozen=True, slots=True)
class BoundOperation:
    """An operation on slots.

    `writes` are (position, slot) of the results that something reads, one with position -1 if the call returns the tensor itself;
    `clears` are the slots of values that nobody reads after this operation. `pieces` is how many results it must make.
    """

    op: str
    call: Callable[..., Any]
    gather: Gather
    rule: Rule
    rule_gather: Gather
    reads: tuple[int, ...]
    writes: tuple[tuple[int, int], ...]
    clears: tuple[int, ...]
    pieces: int
    plain: bool
    """Without keyword arguments."""

    def step(self, call: Callable[..., Any]) -> Step:
        """This operation as a plan holds it, done by `call`."""
        if self.pieces < 0 and self.writes:
            return (call, self.gather, self.writes[0][1], (), self.clears)
        return (call, self.gather, -1, self.writes, self.clears)


@dataclass(slots=True)
class Bindings:
    """A whole program on slots. `batch_sizes` are the slots to fill in for a batch size."""

    slots: Slots = field(default_factory=list)
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    operations: tuple[BoundOperation, ...] = ()
    batch_sizes: list[tuple[int, Argument]] = field(default_factory=list)

    def for_batch(self, batch: int) -> Slots:
        """The slots with everything filled in that does not change between runs at this batch size."""
        slots = self.slots.copy()
        for slot, argument in self.batch_sizes:
            slots[slot] = resolve(argument, batch)
        return slots


def resolve(argument: Argument, batch: int) -> Any:
    """An argument without values as the tensor library takes it."""
    match argument:
        case BatchSize():
            return argument.at(batch)
        case Constant():
            return constant(argument)
        case tuple():
            return [resolve(item, batch) for item in argument]
    return argument


def bind(
    program: Program, operations: Iterable[CheckedOperation], weights: Mapping[str, Any], passing: Iterable[str] = ()
) -> Bindings:
    """The program's operations, bound to slots that hold its weights.

    `passing` are inputs that nobody but this run holds, so that each can be freed after its last use.
    """
    return _Binder(program, weights, frozenset(passing)).bind(list(operations))


class _Binder:
    def __init__(self, program: Program, weights: Mapping[str, Any], passing: frozenset[str]) -> None:
        self._program = program
        self._bindings = Bindings()
        self._by_name = {name: self._slot(None) for name in program.inputs}
        self._by_name |= {name: self._slot(weights[name]) for name in program.weights}
        self._permanent = frozenset(self._by_name) - passing
        self._last_use: dict[str, int] = {}

    def bind(self, operations: Sequence[CheckedOperation]) -> Bindings:
        for index, checked in enumerate(operations):
            self._last_use |= dict.fromkeys(checked.operation.reads(), index)
        self._last_use |= dict.fromkeys(self._program.outputs, len(operations))
        bindings = self._bindings
        bindings.operations = tuple(self._bind(index, checked) for index, checked in enumerate(operations))
        bindings.inputs = tuple(self._by_name[name] for name in self._program.inputs)
        bindings.outputs = tuple(self._by_name[name] for name in self._program.outputs)
        return bindings

    def _bind(self, index: int, checked: CheckedOperation) -> BoundOperation:
        operation = checked.operation
        call, args, many = direct_call(checked)
        kwargs = {name: resolve(argument, 0) for name, argument in checked.kwargs.items()}
        dead = [
            name for name in dict.fromkeys(operation.reads()) if self._last_use[name] == index and name not in self._permanent
        ]
        return BoundOperation(
            op=operation.op,
            call=partial(call, **kwargs) if kwargs else call,
            gather=self._gather(args),
            rule=RULES[operation.op],
            rule_gather=self._gather(checked.args),
            reads=tuple(self._by_name[name] for name in dict.fromkeys(operation.reads())),
            writes=self._writes(operation.results, many=many),
            clears=tuple(self._by_name[name] for name in dead),
            pieces=len(operation.results) if many else -1,
            plain=not kwargs,
        )

    def _writes(self, results: Sequence[str | None], *, many: bool) -> tuple[tuple[int, int], ...]:
        writes = []
        for position, name in enumerate(results):
            if name is not None and name in self._last_use:
                slot = self._by_name[name] = self._slot(None)
                writes.append((position if many else -1, slot))
        return tuple(writes)

    def _slot(self, content: Any) -> int:
        self._bindings.slots.append(content)
        return len(self._bindings.slots) - 1

    def _gather(self, args: Sequence[Argument]) -> Gather:
        if any(isinstance(argument, tuple) and any(values_in(argument)) for argument in args):
            makers = tuple(self._maker(argument) for argument in args)
            return lambda slots: [maker(slots) for maker in makers]
        places = [self._place(argument) for argument in args]
        if len(places) > 1:
            return itemgetter(*places)
        place = slice(places[0], places[0] + 1) if places else slice(0)
        return itemgetter(place)

    def _maker(self, argument: Argument) -> Callable[[Slots], Any]:
        if not isinstance(argument, tuple):
            return itemgetter(self._place(argument))
        places = [self._place(item) for item in argument]
        return lambda slots: [slots[place] for place in places]

    def _place(self, argument: Argument) -> int:
        if isinstance(argument, Value):
            return self._by_name[argument.name]
        if _follows_batch(argument):
            slot = self._slot(None)
            self._bindings.batch_sizes.append((slot, argument))
            return slot
        return self._slot(resolve(argument, 0))


def _follows_batch(argument: Argument) -> bool:
    if isinstance(argument, tuple):
        return any(_follows_batch(item) for item in argument)
    return isinstance(argument, BatchSize)
