"""Runs a layer program at any batch size.

Preparation (`bind`) checks the program and binds every operation to a callable and slots:
every value, weight and constant has a slot in one list, so that gathering an operation's arguments is one `itemgetter`. A size
that follows the batch is a constant whose slot is set for each batch size. A run copies the list of slots, walks the operations
and clears each slot after its last use, so that a program holds no more memory than its module does.

The first run at a batch size is functional and checked. Before each operation its size rule bounds what it allocates; afterwards
the layouts of its tensors are recorded, and a plan is derived in which elementwise operations reuse their last-read operands.
Later runs only walk the plan, at well under a microsecond an operation in addition to the time that torch takes. A plan holds for
one form of inputs only: whether an operation returns a view or a copy follows from shapes and strides, and so does which memory
may be overwritten.

Reuse. Programs are functional: a ReLU makes a new tensor where the module it was captured from overwrote one. Memory that was
never touched costs a page fault for each 4 KiB, so the difference is measurable. An elementwise operation may write into its
first operand if no later operation reads that operand, or another view of its storage. Both are observed in the first run
rather than derived: whether two tensors share a storage follows from shapes and strides alone, which are the same in every run
of that form. Inputs and weights are never written.

Callables. Any operator can be called through its overload, whose arguments a generic interpreter parses in 1.5 to 7 µs. For the
operators that fill most networks torch has a generated binding with the same arguments, which takes 1 to 5 µs; the kernels behind
both are the same, so the bits are.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Any, TypeAlias

import torch
from torch import Tensor

from gnomon_core.program import Argument, BatchSize, Constant, Program, Value, invalid_program, values_in
from gnomon_core.signature import ModelSignature
from gnomon_runtime.engine.allowlist import CheckedOperation, check_program, constant
from gnomon_runtime.engine.sizes import RULES, Rule
from gnomon_runtime.engine.torch_support import TORCH_DTYPES, Limits, aten, bindings, callable_of

IN_PLACE: Mapping[str, Callable[..., Tensor]] = {
    "aten.relu.default": torch.relu_,
    "aten.hardtanh.default": bindings.hardtanh_,
    "aten.silu.default": bindings.silu_,
    "aten.hardswish.default": bindings.hardswish_,
    "aten.hardsigmoid.default": bindings.hardsigmoid_,
    "aten.leaky_relu.default": bindings.leaky_relu_,
    "aten.elu.default": bindings.elu_,
    "aten.sigmoid.default": torch.sigmoid_,
    "aten.tanh.default": torch.tanh_,
    "aten.gelu.default": callable_of(aten.gelu_.default),
    "aten.add.Tensor": callable_of(aten.add_.Tensor),
    "aten.sub.Tensor": callable_of(aten.sub_.Tensor),
    "aten.mul.Tensor": callable_of(aten.mul_.Tensor),
    "aten.div.Tensor": callable_of(aten.div_.Tensor),
}


def storage_of(tensor: Tensor) -> int:
    """The address of a tensor's storage. Only tensors alive at the same time can be compared: addresses are reused.

    Empty storages all have address 0 and count as one, which only forbids reuse that would gain nothing.
    """
    return int(tensor.untyped_storage().data_ptr())


@dataclass(frozen=True, slots=True)
class Layout:
    """The properties that must be equal for one tensor to be written over another."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    storage: int

    @staticmethod
    def of(tensor: Tensor) -> Layout:
        return Layout(tensor.dtype, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()), storage_of(tensor))

    def same_form(self, other: Layout) -> bool:
        """True if both have one type, shape and strides."""
        return (self.dtype, self.shape, self.strides) == (other.dtype, other.shape, other.strides)


def may_overwrite(target: Layout, result: Layout, operands: list[Layout], alive_after: list[Layout]) -> bool:
    """True if an elementwise operation may write its result over its first operand.

    `operands` are its other tensors: one may be the very same view, which is read element by element before it is written, but
    no other view of the same storage. `alive_after` is everything that something reads later, inputs and weights included.
    """
    if not target.same_form(result):
        return False
    if any(operand.storage == target.storage and operand != target for operand in operands):
        return False
    return all(layout.storage != target.storage for layout in alive_after)


_ELEMENT_BYTES = 8
"""Bytes of the widest element: a size rule does not know the type."""


class CheckedRun:
    """A run, operation by operation. `slots` holds the values that are alive, `peak_bytes` their largest total."""

    def __init__(self, limits: Limits, constants: Slots, inputs: Mapping[int, Tensor]) -> None:
        self._limits = limits
        self.slots = constants.copy()
        for slot, tensor in inputs.items():
            self.slots[slot] = tensor
        # Inputs that the run frees are kept alive until its end: the allocator would give a new tensor the address of a freed
        # one, and storages are distinguished by their addresses.
        self._kept_alive = [content for content in self.slots if isinstance(content, Tensor)]
        self._permanent = {storage_of(tensor) for tensor in self._kept_alive}
        self._made: dict[int, Tensor] = {}
        self.peak_bytes = 0

    def step(self, operation: BoundOperation) -> Step:
        """Run one operation and say how later runs at this batch size do it."""
        arguments = operation.gather(self.slots)
        self._bound(operation)
        result = operation.call(*arguments)
        self._keep(operation, result)
        call = operation.call
        if self._may_overwrite(operation, arguments, result):
            call = IN_PLACE[operation.op]
        for slot in operation.clears:
            self.slots[slot] = None
            self._made.pop(slot, None)
        return operation.step(call)

    def _bound(self, operation: BoundOperation) -> None:
        elements = operation.rule(operation.rule_gather(self.slots))
        live_bytes = self._live_bytes()
        limits = self._limits
        if elements > limits.max_elements or live_bytes + elements * _ELEMENT_BYTES > limits.max_live_bytes:
            raise invalid_program(
                f"{operation.op} could make {elements} elements beside {live_bytes} bytes that are alive.",
                f"At most {limits.max_elements} elements and {limits.max_live_bytes} bytes are allowed: use a smaller batch.",
            )

    def _keep(self, operation: BoundOperation, result: Any) -> None:
        if operation.pieces >= 0 and len(result) != operation.pieces:
            raise invalid_program(f"{operation.op} made {len(result)} results; the program names {operation.pieces}.")
        for position, slot in operation.writes:
            tensor = result if position < 0 else result[position]
            self.slots[slot] = tensor
            if storage_of(tensor) not in self._permanent:
                self._made[slot] = tensor
        self.peak_bytes = max(self.peak_bytes, self._live_bytes())

    def _live_bytes(self) -> int:
        # By storage: several views of one storage take its memory once.
        return sum({storage_of(tensor): tensor.untyped_storage().nbytes() for tensor in self._made.values()}.values())

    def _may_overwrite(self, operation: BoundOperation, arguments: Any, result: Any) -> bool:
        if operation.op not in IN_PLACE or not operation.plain or not operation.writes:
            return False
        target = arguments[0]
        if storage_of(target) in self._permanent:
            return False
        alive_after = [
            Layout.of(tensor) for slot, tensor in self._made.items() if slot not in operation.clears and tensor is not result
        ]
        operands = [Layout.of(tensor) for tensor in arguments[1:] if isinstance(tensor, Tensor)]
        return may_overwrite(Layout.of(target), Layout.of(result), operands, alive_after)


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan for inputs of one form. `slots` holds weights and constants, and None for values."""

    slots: Slots
    steps: tuple[Step, ...]
    peak_bytes: int


class PlannedOperations:
    """Bound operations and the plans that were made of them. One thread at a time."""

    def __init__(self, bindings: Bindings, limits: Limits | None = None) -> None:
        self._bindings = bindings
        self._limits = limits or Limits()
        self._plans: dict[Hashable, Plan] = {}

    def _run(self, form: Hashable, batch: int, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        with torch.inference_mode():
            plan = self._plans.get(form)
            return self._walk(plan, self._given(plan.slots, inputs)) if plan else self._first_run(form, batch, inputs)

    def _given(self, constants: Slots, inputs: Sequence[Tensor]) -> Slots:
        slots = constants.copy()
        for slot, tensor in zip(self._bindings.inputs, inputs, strict=True):
            slots[slot] = tensor
        return slots

    def _walk(self, plan: Plan, slots: Slots, before_last: Callable[[], None] | None = None) -> tuple[Tensor, ...]:
        """Run a plan on its slots. `before_last` is called before the last operation."""
        if before_last is None:
            _take(plan.steps, slots)
        else:
            _take(plan.steps[:-1], slots)
            before_last()
            _take(plan.steps[-1:], slots)
        return tuple(slots[slot] for slot in self._bindings.outputs)

    def _first_run(self, form: Hashable, batch: int, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        constants = self._bindings.for_batch(batch)
        run = CheckedRun(self._limits, constants, dict(zip(self._bindings.inputs, inputs, strict=True)))
        steps = [run.step(operation) for operation in self._bindings.operations]
        outputs = tuple(run.slots[slot] for slot in self._bindings.outputs)
        self._plans[form] = Plan(constants, tuple(steps), run.peak_bytes)
        return outputs


def _take(steps: Sequence[Step], slots: Slots) -> None:
    for call, gather, only, each, clears in steps:
        result = call(*gather(slots))
        if only >= 0:
            slots[only] = result
        else:
            for position, slot in each:
                slots[slot] = result[position]
        for slot in clears:
            slots[slot] = None


def check_inputs(signature: ModelSignature, inputs: Sequence[Tensor]) -> int:
    """The batch size of inputs that are what the signature says. Raises ValueError for others."""
    specs = signature.inputs
    if len(inputs) != len(specs):
        raise ValueError(f"the model takes {len(specs)} inputs, not {len(inputs)}")
    for spec, tensor in zip(specs, inputs, strict=True):
        batch = inputs[0].shape[0] if inputs[0].dim() else 0
        if not batch or tensor.shape != (batch, *spec.shape) or tensor.dtype != TORCH_DTYPES[spec.datatype]:
            raise ValueError(f"input {spec.name} is {tensor.dtype} {tuple(tensor.shape)}; it must be a batch of {spec}")
    return int(inputs[0].shape[0])


def check_outputs(signature: ModelSignature, batch: int, outputs: Sequence[Tensor]) -> None:
    """Raise 422 `invalid_program` unless the outputs are what the signature says."""
    for spec, tensor in zip(signature.outputs, outputs, strict=True):
        if tensor.shape != (batch, *spec.shape) or tensor.dtype != TORCH_DTYPES[spec.datatype]:
            raise invalid_program(f"Output {spec.name} is {tensor.dtype} {tuple(tensor.shape)} and not a batch of {spec}.")


class Executor(PlannedOperations):
    """A program that is ready to run. Not thread-safe: one thread at a time.

    Raises:
        GnomonError: 422 `invalid_program` when the program may not run.

    """

    def __init__(self, program: Program, weights: Mapping[str, Tensor], limits: Limits | None = None) -> None:
        self.signature = program.signature
        super().__init__(bind(program, check_program(program), weights), limits)

    def run(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The program's outputs for one batch; the first axis of inputs and outputs is the batch.

        Raises:
            GnomonError: 422 when the program would exceed its limits or its outputs are not what its signature says.
            ValueError: the inputs are not what its signature says.

        """
        batch = check_inputs(self.signature, inputs)
        outputs = self._run(batch, batch, inputs)
        check_outputs(self.signature, batch, outputs)
        return outputs

    def peak_bytes(self, batch: int) -> int | None:
        """The peak bytes of values at this batch size, weights and inputs not counted; None before its first run."""
        plan = self._plans.get(batch)
        return plan.peak_bytes if plan else None


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
"""The callable, its arguments, the slot of its only result (or -1, and the position and slot of each), the slots to clear."""


@dataclass(frozen=True, slots=True)
class BoundOperation:
    """An operation on slots.

    `writes` are (position, slot) of the results that something reads, one with position -1 if the call returns the tensor itself;
    `clears` are the slots of values that no later operation reads. `pieces` is how many results it must make.
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
    """True if the call has no keyword arguments."""

    def step(self, call: Callable[..., Any]) -> Step:
        """Return the operation as a step of a plan that executes `call`."""
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

    `passing` are inputs that only this run holds, so that each can be freed after its last use.
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
        last_read = [
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
            clears=tuple(self._by_name[name] for name in last_read),
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
        slot_slice = slice(places[0], places[0] + 1) if places else slice(0)
        return itemgetter(slot_slice)

    def _maker(self, argument: Argument) -> Callable[[Slots], Any]:
        if not isinstance(argument, tuple):
            return itemgetter(self._place(argument))
        places = [self._place(item) for item in argument]
        return lambda slots: [slots[slot] for slot in places]

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
