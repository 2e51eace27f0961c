"""A layer program: a model as data.

The extractor writes the program and the engine runs it: a list of operations, each an ATen overload by name, its arguments, and
the names of the values it makes. Every value is made once, by an operation, an input or a weight, before it is read. Operations
are functional: none changes a value in place, so running one again gives the same answer.

    {"op": "aten.conv2d.default", "args": [{"value": "x"}, {"value": "w"}, null, [2, 2]], "results": ["conv2d"]}

What JSON has no word for is an object with one meaning: `{"value": name}`, `{"dtype": "float32"}`, `{"float": "inf"}`,
`{"memory_format": …}`, `{"layout": …}`, `{"device": "cpu"}`, and sizes that follow the batch: `{"batch": 4, "plus": 1, "over":
2}` is (4·batch + 1) // 2. No coefficient is negative, so a size never shrinks when the batch grows: what fits at the largest
batch fits at all of them.

A program may come from a stranger, so the reader trusts no part of it: every list, number, name and text is compared with a bound
before it is used; then every value must be made before it is read. The engine checks the arguments of each operator, because it
has the schemas.

An operator outside `ALLOWED_OPERATORS` is refused by name, at capture and again before the program runs. Each allowed one is
functional, gives the same answer each time (no random numbers), and has a result whose size follows from the sizes of its
arguments and its constants (no `nonzero`, no `unique`), so that a program's memory is known before it runs. None reads a file,
adopts a storage, or sees memory beyond its arguments: `from_file`, `set_`, `resize_` and `as_strided` are ATen names too.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, Union

from gnomon_core.errors import GnomonError
from gnomon_core.signature import DATATYPE_BYTES, ModelSignature, TensorSpec

FORMAT = "gnomon-layer-program/1"


def invalid_program(message: str, hint: str = "Capture the model again with gnomon's Extractor.") -> GnomonError:
    """422: the document is not a layer program that can be run."""
    return GnomonError(422, "invalid_program", message, hint)


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor by name: an input, a weight or a result."""

    name: str


@dataclass(frozen=True, slots=True)
class BatchSize:
    """A size that follows the batch: (times · batch + plus) // over."""

    times: int
    plus: int = 0
    over: int = 1

    def at(self, batch: int) -> int:
        """The size at this batch."""
        return (self.times * batch + self.plus) // self.over


@dataclass(frozen=True, slots=True)
class Constant:
    """A named constant of the tensor library: `kind` is dtype, memory_format, layout or device."""

    kind: str
    name: str


Argument: TypeAlias = Union[bool, int, float, str, Value, BatchSize, Constant, tuple["Argument", ...], None]  # noqa: UP007 - recursive
CONSTANT_KINDS = ("dtype", "memory_format", "layout", "device")


@dataclass(frozen=True, slots=True)
class Operation:
    """An ATen overload applied to arguments. A result that no operation reads has the name None."""

    op: str
    args: tuple[Argument, ...]
    results: tuple[str | None, ...]
    kwargs: Mapping[str, Argument] = field(default_factory=dict)

    def reads(self) -> Iterator[str]:
        """The names of the values that it reads, as often as it does."""
        yield from values_in((*self.args, *self.kwargs.values()))


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor of the weight file.

    `order` is its axes from the slowest to the fastest in memory where that is not 0, 1, 2, …: the file holds it with its axes in
    that order, and the engine turns them back.
    """

    datatype: str
    shape: tuple[int, ...]
    order: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Program:
    """A layer program. `schema_sha256` is of the operators' schemas at capture; the engine compares it with its own."""

    torch_version: str
    schema_sha256: str
    signature: ModelSignature
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: Mapping[str, Weight]
    operations: tuple[Operation, ...]

    def operators(self) -> tuple[str, ...]:
        """The names of the operators it uses, sorted."""
        return tuple(sorted({operation.op for operation in self.operations}))


def values_in(arguments: Sequence[Argument]) -> Iterator[str]:
    """The names of the values in arguments, however deeply nested."""
    for argument in arguments:
        if isinstance(argument, Value):
            yield argument.name
        elif isinstance(argument, tuple):
            yield from values_in(argument)


def dump_program(program: Program) -> bytes:
    """The JSON document of a program. The same program gives the same bytes."""
    document = {
        "format": FORMAT,
        "torch": program.torch_version,
        "schema_sha256": program.schema_sha256,
        "signature": program.signature.to_json(),
        "inputs": list(program.inputs),
        "outputs": list(program.outputs),
        "weights": {name: _dump_weight(weight) for name, weight in program.weights.items()},
        "operations": [_dump_operation(operation) for operation in program.operations],
    }
    return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _dump_weight(weight: Weight) -> dict[str, Any]:
    document: dict[str, Any] = {"datatype": weight.datatype, "shape": list(weight.shape)}
    return document | ({"order": list(weight.order)} if weight.order else {})


def _dump_operation(operation: Operation) -> dict[str, Any]:
    document: dict[str, Any] = {
        "op": operation.op,
        "args": [_dump_argument(argument) for argument in operation.args],
        "results": list(operation.results),
    }
    if operation.kwargs:
        document["kwargs"] = {name: _dump_argument(argument) for name, argument in operation.kwargs.items()}
    return document


def _dump_argument(argument: Argument) -> Any:
    match argument:
        case Value(name):
            return {"value": name}
        case BatchSize(times, plus, over):
            return {"batch": times} | ({"plus": plus} if plus else {}) | ({"over": over} if over != 1 else {})
        case Constant(kind, name):
            return {kind: name}
        case tuple():
            return [_dump_argument(item) for item in argument]
        case float() if not math.isfinite(argument):
            return {"float": str(argument)}
    return argument


def schema_sha256(schemas: Iterable[str]) -> str:
    """The hash of operators' schemas, in any order: what a program states of the operators it was captured with."""
    return hashlib.sha256("\n".join(sorted(schemas)).encode()).hexdigest()


MAX_PROGRAM_BYTES = 64 << 20
MAX_OPERATIONS = 50_000
MAX_LIST = 4096
MAX_NESTING = 4
MAX_COEFFICIENT = 1 << 40
_MAX_INT = (1 << 63) - 1
_OPERATOR = re.compile(r"[a-z][a-z0-9_]*\.[a-z_][a-z0-9_]*\.[A-Za-z_][A-Za-z0-9_]*")
_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,255}")
_WORD = re.compile(r"[A-Za-z0-9_]{1,32}")
_TEXT = re.compile(r"[A-Za-z0-9_ ,.>-]{0,255}")  # a mode, or the equation of an einsum
_INFINITIES = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def parse_program(data: bytes) -> Program:
    """The program that a JSON document describes, checked as far as that goes without the operators themselves.

    Raises:
        GnomonError: 422 `invalid_program`, naming what is wrong.

    """
    if len(data) > MAX_PROGRAM_BYTES:
        raise invalid_program(f"The program is {len(data)} bytes; at most {MAX_PROGRAM_BYTES} are read.")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise invalid_program(f"The program is not JSON: {error}.") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        format_name = document.get("format") if isinstance(document, dict) else None
        raise invalid_program(f"The format is {format_name!r}; this engine reads {FORMAT!r}.")
    try:
        program = _read_program(document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise invalid_program(f"The program lacks a field or has one of a wrong type: {error!r}.") from None
    _check_names(program)
    return program


def _read_program(document: Mapping[str, Any]) -> Program:
    signature = ModelSignature.from_json(document["signature"])
    for spec in (*signature.inputs, *signature.outputs):
        _check_tensor(spec)
    operations = document["operations"]
    if len(operations) > MAX_OPERATIONS:
        raise invalid_program(f"The program has {len(operations)} operations; at most {MAX_OPERATIONS} are run.")
    return Program(
        torch_version=str(document["torch"]),
        schema_sha256=str(document["schema_sha256"]),
        signature=signature,
        inputs=tuple(_name(name) for name in document["inputs"]),
        outputs=tuple(_name(name) for name in document["outputs"]),
        weights={_name(name): _read_weight(name, weight) for name, weight in document["weights"].items()},
        operations=tuple(_read_operation(operation) for operation in operations),
    )


def _check_tensor(spec: TensorSpec) -> None:
    _name(spec.name)
    if spec.datatype not in DATATYPE_BYTES or any(not 0 < size <= MAX_COEFFICIENT for size in spec.shape):
        raise invalid_program(f"Tensor {spec.name!r} of the signature has datatype {spec.datatype!r} and shape {spec.shape}.")


def _read_weight(name: str, document: Mapping[str, Any]) -> Weight:
    weight = Weight(
        datatype=str(document["datatype"]),
        shape=tuple(_integer(size) for size in document["shape"]),
        order=tuple(_integer(axis) for axis in document.get("order", ())),
    )
    sizes_fit = all(0 <= size <= MAX_COEFFICIENT for size in weight.shape)
    axes_fit = not weight.order or sorted(weight.order) == list(range(len(weight.shape)))
    if weight.datatype not in DATATYPE_BYTES or not sizes_fit or not axes_fit:
        raise invalid_program(f"Weight {name!r} has datatype {weight.datatype!r}, shape {weight.shape} and order {weight.order}.")
    return weight


def _read_operation(document: Mapping[str, Any]) -> Operation:
    op = document["op"]
    if not isinstance(op, str) or not _OPERATOR.fullmatch(op):
        raise invalid_program(f"{str(op)[:100]!r} is not the name of an ATen overload.")
    return Operation(
        op=op,
        args=tuple(_read_argument(argument) for argument in document["args"]),
        results=tuple(None if name is None else _name(name) for name in document["results"]),
        kwargs={_word(name): _read_argument(argument) for name, argument in document.get("kwargs", {}).items()},
    )


def _read_argument(document: Any, depth: int = 0) -> Argument:
    match document:
        case None | bool():
            return document
        case int():
            return _integer(document)
        case float() if math.isfinite(document):
            return document
        case str() if _TEXT.fullmatch(document):
            return document
        case list() if depth < MAX_NESTING and len(document) <= MAX_LIST:
            return tuple(_read_argument(item, depth + 1) for item in document)
        case dict():
            return _read_object(document)
    raise invalid_program(f"{str(document)[:100]!r} is not an argument.")


def _read_object(document: Mapping[str, Any]) -> Argument:
    keys = set(document)
    if keys == {"value"}:
        return Value(_name(document["value"]))
    if keys == {"float"} and document["float"] in _INFINITIES:
        return _INFINITIES[document["float"]]
    if "batch" in keys and keys <= {"batch", "plus", "over"}:
        times, plus, over = (_integer(document.get(key, default)) for key, default in (("batch", 0), ("plus", 0), ("over", 1)))
        if not (0 < times <= MAX_COEFFICIENT and 0 <= plus <= MAX_COEFFICIENT and 0 < over <= MAX_COEFFICIENT):
            raise invalid_program(f"{document} does not grow with the batch within the bounds.")
        return BatchSize(times, plus, over)
    kind = next(iter(keys)) if len(keys) == 1 else ""
    if kind in CONSTANT_KINDS:
        return Constant(kind, _word(document[kind]))
    raise invalid_program(f"{str(document)[:100]} is not an argument.")


def _check_names(program: Program) -> None:
    """Check that every value is made once, before it is read."""
    defined = {*program.inputs, *program.weights}
    if len(defined) != len(program.inputs) + len(program.weights):
        raise invalid_program("An input and a weight, or two inputs, have the same name.")
    if len(program.inputs) != len(program.signature.inputs) or len(program.outputs) != len(program.signature.outputs):
        raise invalid_program("The signature has another number of inputs or outputs than the program.")
    for index, operation in enumerate(program.operations):
        _check_operation(f"Operation {index}, {operation.op},", operation, defined)
    for name in program.outputs:
        if name not in defined:
            raise invalid_program(f"No operation makes the output {name!r}.")


def _check_operation(label: str, operation: Operation, defined: set[str]) -> None:
    for name in operation.reads():
        if name not in defined:
            raise invalid_program(f"{label} reads {name!r} before anything makes it.")
    for result in operation.results:
        if result in defined:
            raise invalid_program(f"{label} makes {result!r} a second time.")
        if result is not None:
            defined.add(result)


def _integer(number: Any) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or abs(number) > _MAX_INT:
        raise invalid_program(f"{str(number)[:100]!r} is not a 64-bit integer.")
    return number


def _name(name: Any) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise invalid_program(f"{str(name)[:100]!r} is not a name.")
    return name


def _word(word: Any) -> str:
    if not isinstance(word, str) or not _WORD.fullmatch(word):
        raise invalid_program(f"{str(word)[:100]!r} is not a word.")
    return word


_CONVOLUTION = """
    conv1d.default conv1d.padding conv2d.default conv2d.padding conv3d.default conv3d.padding convolution.default
    conv_transpose1d.default conv_transpose2d.input conv_transpose3d.input
"""
_PRODUCTS = """
    linear.default matmul.default mm.default bmm.default addmm.default baddbmm.default einsum.default
    scaled_dot_product_attention.default
"""
_NORMALISATION = """
    _native_batch_norm_legit_no_training.default layer_norm.default native_layer_norm.default
    group_norm.default native_group_norm.default instance_norm.default rms_norm.default linalg_vector_norm.default
"""
_POOLING = """
    max_pool1d.default max_pool2d.default max_pool3d.default max_pool2d_with_indices.default max_pool3d_with_indices.default
    avg_pool1d.default avg_pool2d.default avg_pool3d.default
    adaptive_avg_pool1d.default adaptive_avg_pool2d.default adaptive_avg_pool3d.default
    adaptive_max_pool1d.default adaptive_max_pool2d.default _adaptive_avg_pool2d.default _adaptive_avg_pool3d.default
"""
_ACTIVATIONS = """
    relu.default relu6.default leaky_relu.default elu.default selu.default celu.default gelu.default silu.default mish.default
    sigmoid.default hardsigmoid.default hardswish.default hardtanh.default tanh.default softplus.default log_sigmoid.default
    prelu.default _prelu_kernel.default threshold.default glu.default
    softmax.int log_softmax.int _softmax.default _log_softmax.default
"""
_ARITHMETIC = """
    add.Tensor add.Scalar sub.Tensor sub.Scalar rsub.Tensor rsub.Scalar mul.Tensor mul.Scalar div.Tensor div.Scalar
    div.Tensor_mode div.Scalar_mode pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar remainder.Scalar remainder.Tensor fmod.Scalar
    fmod.Tensor floor_divide.default maximum.default minimum.default lerp.Tensor lerp.Scalar addcmul.default addcdiv.default
    neg.default abs.default sqrt.default rsqrt.default square.default reciprocal.default exp.default expm1.default log.default
    log1p.default log2.default sin.default cos.default tan.default atan.default atan2.default erf.default sign.default
    floor.default ceil.default round.default trunc.default isnan.default isinf.default nan_to_num.default clamp.default
    clamp.Tensor clamp_min.default clamp_max.default
"""
_LOGIC = """
    eq.Scalar eq.Tensor ne.Scalar ne.Tensor lt.Scalar lt.Tensor le.Scalar le.Tensor gt.Scalar gt.Tensor ge.Scalar ge.Tensor
    logical_not.default logical_and.default logical_or.default logical_xor.default bitwise_not.default bitwise_and.Tensor
    bitwise_or.Tensor bitwise_xor.Tensor __and__.Tensor __or__.Tensor where.self where.ScalarOther where.ScalarSelf
    masked_fill.Scalar masked_fill.Tensor
"""
_REDUCTIONS = """
    mean.dim mean.default sum.dim_IntList sum.default prod.dim_int amax.default amin.default max.dim min.dim max.other min.other
    argmax.default argmin.default var.correction var_mean.correction std.correction all.dim any.dim any.default all.default
    cumsum.default topk.default sort.default logsumexp.default
"""
_SHAPES = """
    view.default reshape.default _unsafe_view.default flatten.using_ints unflatten.int permute.default transpose.int t.default
    squeeze.default squeeze.dim squeeze.dims unsqueeze.default expand.default repeat.default repeat_interleave.self_int
    tile.default select.int slice.Tensor narrow.default split.Tensor split_with_sizes.default unbind.int cat.default stack.default
    roll.default flip.default movedim.int numpy_T.default pixel_shuffle.default pixel_unshuffle.default channel_shuffle.default
    contiguous.default clone.default alias.default detach.default lift_fresh_copy.default to.dtype to.dtype_layout
    _to_copy.default type_as.default pad.default constant_pad_nd.default reflection_pad1d.default reflection_pad2d.default
    replication_pad2d.default tril.default triu.default diagonal.default slice_scatter.default select_scatter.default fill.Scalar
    zero.default copy.default
"""
_LOOKUPS = """
    embedding.default index.Tensor index_select.default gather.default scatter.src
    scatter.value index_put.default
"""
_NEW = """
    full.default zeros.default ones.default full_like.default zeros_like.default ones_like.default new_zeros.default
    new_ones.default new_full.default arange.default arange.start arange.start_step scalar_tensor.default eye.default
    linspace.default
"""
_RESAMPLING = """
    upsample_nearest1d.vec upsample_nearest2d.vec upsample_nearest3d.vec upsample_nearest2d.default
    upsample_bilinear2d.vec upsample_bilinear2d.default upsample_bicubic2d.vec upsample_bicubic2d.default upsample_trilinear3d.vec
    grid_sampler.default grid_sampler_2d.default
"""

ALLOWED_OPERATORS = frozenset(
    f"aten.{name}"
    for family in (
        _CONVOLUTION,
        _PRODUCTS,
        _NORMALISATION,
        _POOLING,
        _ACTIVATIONS,
        _ARITHMETIC,
        _LOGIC,
        _REDUCTIONS,
        _SHAPES,
        _LOOKUPS,
        _NEW,
        _RESAMPLING,
    )
    for name in family.split()
)

_KEEPS_NUMBERS = """
    to.dtype to.dtype_layout _to_copy.default type_as.default clone.default contiguous.default alias.default detach.default
    lift_fresh_copy.default view.default reshape.default _unsafe_view.default flatten.using_ints unflatten.int expand.default
    permute.default transpose.int t.default squeeze.default squeeze.dim squeeze.dims unsqueeze.default select.int slice.Tensor
    narrow.default repeat.default tile.default split.Tensor split_with_sizes.default unbind.int
"""
_SAME_NUMBERS = frozenset(f"aten.{name}" for name in _KEEPS_NUMBERS.split())
"""Operators whose results hold numbers of their first argument and no others."""


def index_ranges(program: Program) -> dict[str, range]:
    """The indices that every table has from which an input's whole numbers pick, by the input's name in the signature.

    A table is a weight that an embedding, `index_select` or an index along its first axis reads. Only the last counts negative
    numbers from the table's end.
    """
    inputs = zip(program.inputs, program.signature.inputs, strict=True)
    origin = {name: spec.name for name, spec in inputs if "INT" in spec.datatype}
    ranges: dict[str, range] = {}
    for operation in program.operations:
        for source, indices in _picks(operation.op, operation.args, program):
            if source in origin:
                known = ranges.get(origin[source], indices)
                ranges[origin[source]] = range(max(known.start, indices.start), min(known.stop, indices.stop))
        first = operation.args[0] if operation.args else None
        if operation.op in _SAME_NUMBERS and isinstance(first, Value) and first.name in origin:
            origin |= {name: origin[first.name] for name in operation.results if name is not None}
    return ranges


def _picks(op: str, args: tuple[Any, ...], program: Program) -> list[tuple[str, range]]:
    """The value whose numbers pick from a weight in this operation, with the indices that the weight has."""
    axis, least = 0, 0
    match op, args:
        case "aten.embedding.default", (Value(table), Value(picking), *_):
            pass
        case "aten.index_select.default", (Value(table), int(axis), Value(picking)):
            pass
        case "aten.index.Tensor", (Value(table), (Value(picking),)):
            least = -1
        case _:
            return []
    shape = program.weights[table].shape if table in program.weights else ()
    # The operator itself refuses an axis that the table lacks, and an empty table has nothing to pick.
    size = shape[axis] if -len(shape) <= axis < len(shape) else 0
    return [(picking, range(least * size, size))] if size else []
