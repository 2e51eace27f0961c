"""Captures a torch module once, and writes it as a layer program with its weights.

`torch.export` traces the module with a batch axis of unknown size, at a batch of 2 because a size of 1 broadcasts and would be
taken for a constant. Its decompositions are then run with a table of recurrent layers alone, which functionalises: no operation
that changes a tensor in place is left, whatever the module's author wrote. What cannot be a layer program (a custom operator,
control flow as data, a size that depends on values, a buffer that changes) is refused by name before anything is written.

The program's layer blocks are found from the program alone; each operation's module is remembered only to name them.
"""

from __future__ import annotations

import copy
import inspect
import math
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy  # type: ignore[import-untyped]  # it ships no types
import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, OutputKind
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.nn.utils import parametrize

from gnomon_core.errors import GnomonError
from gnomon_core.program import (
    ALLOWED_OPERATORS,
    Argument,
    BatchSize,
    Constant,
    Operation,
    Program,
    Value,
    Weight,
    dump_program,
    schema_sha256,
)
from gnomon_core.signature import ModelSignature, TensorSpec
from gnomon_profiler.layers import dump_layers, find_layers
from gnomon_profiler.recurrent import DECOMPOSITIONS
from gnomon_profiler.weights import DATATYPES, WeightFile

CAPTURE_BATCH = 2
MAX_BATCH = 4096
_ASSERTIONS = frozenset(
    {
        "aten._assert_async.msg",
        "aten._assert_scalar.default",
        "aten._assert_tensor_metadata.default",
        "aten.sym_constrain_range.default",
        "aten.sym_constrain_range_for_size.default",
    }
)
"""Operators of torch.export's own assertions; they produce no tensor."""


@dataclass(frozen=True, slots=True)
class Description:
    """The metadata of a model that its graph does not contain: name, version, kind, details, names of inputs and outputs."""

    model: str
    version: str = "1"
    kind: str = ""
    details: Mapping[str, Any] | None = None
    input_names: tuple[str, ...] = ()
    output_names: tuple[str, ...] = ()


def capture(module: torch.nn.Module, example: Sequence[Tensor], description: Description) -> dict[str, bytes]:
    """The files of a model repository entry: `program.json`, `weights.safetensors` and, if it has operations, `layers.json`.

    `example` holds one tensor for each input, its first axis the batch; values do not matter where the module does not branch on
    them.

    Raises:
        GnomonError: 422 `unsupported_model`, naming what cannot be captured.

    """
    module = _plain(module)
    exported = _export(module, example)
    _refuse_changes(exported)
    writer = _Writer(exported)
    inputs = description.input_names or _parameter_names(module, len(example))
    program = writer.program(description, inputs)
    files = {"program.json": dump_program(program), "weights.safetensors": writer.weights.file_bytes()}
    if program.operations:
        files["layers.json"] = dump_layers(find_layers(program, writer.weights.tensors(), modules=writer.modules))
    return files


def _plain(module: torch.nn.Module) -> torch.nn.Module:
    """The module without `torch.compile`, and with parametrised weights (`weight_norm`) as the tensors that they give."""
    module = getattr(module, "_orig_mod", module)
    if not any(parametrize.is_parametrized(part) for part in module.modules()):
        return module
    module = copy.deepcopy(module).eval()
    for part in list(module.modules()):
        if parametrize.is_parametrized(part):
            weights = {name: getattr(part, name).detach() for name in part.parametrizations}
            # Not torch's remove_parametrizations: it changes the class, which the copy shares with the caller's module.
            del part.parametrizations
            part.__class__ = type(part).__bases__[0]
            for name, weight in weights.items():
                part.register_parameter(name, torch.nn.Parameter(weight))
    return module


def _export(module: torch.nn.Module, example: Sequence[Tensor]) -> ExportedProgram:
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    batch = Dim("batch", min=1, max=MAX_BATCH)
    args = tuple(tensor[:1].repeat(CAPTURE_BATCH, *([1] * (tensor.dim() - 1))) for tensor in example)
    shapes: tuple[Any, ...] = tuple({0: batch} for _ in args)
    if _takes_any_number(module):
        shapes = (shapes,)
    try:
        with torch.no_grad():
            exported = torch.export.export(module, args, dynamic_shapes=shapes, strict=False)
            functional: ExportedProgram = exported.run_decompositions(dict(DECOMPOSITIONS))
            return functional
    except GnomonError:
        raise
    except Exception as error:  # torch.export raises dozens of kinds, all of them about the module
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = lines[0] if lines else type(error).__name__
        raise unsupported(
            f"torch.export cannot capture the model: {reason[:500]}",
            "Export its network alone: no control flow that depends on values, no post-processing, a free batch axis.",
        ) from error
    finally:
        for part, training in modes:
            part.training = training


def _takes_any_number(module: torch.nn.Module) -> bool:
    """True if `forward` takes its inputs as `*inputs`, for which torch.export has one entry."""
    return [parameter.kind for parameter in inspect.signature(module.forward).parameters.values()] == [
        inspect.Parameter.VAR_POSITIONAL
    ]


def _refuse_changes(exported: ExportedProgram) -> None:
    for spec in exported.graph_signature.output_specs:
        if spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION):
            raise unsupported(
                f"The model changes {spec.target!r} when it runs.", "Keep state outside the model, or put it in eval mode."
            )


def _parameter_names(module: torch.nn.Module, count: int) -> tuple[str, ...]:
    names = [
        parameter.name
        for parameter in inspect.signature(module.forward).parameters.values()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    return tuple(names[:count]) if len(names) >= count else tuple(f"input_{index}" for index in range(count))


class _Writer:
    """Walks the graph once and collects inputs, weights and operations."""

    def __init__(self, exported: ExportedProgram) -> None:
        self._exported = exported
        self.weights = WeightFile()
        self.modules: list[str] = []
        """The path of the module that each operation comes from, "" where torch.export did not keep it."""
        self._values: dict[str, str] = {}
        """The value's name by its node's: the same but for tied weights and parts of several results."""
        self._node_names = frozenset(node.name for node in exported.graph.nodes)
        self._inputs: list[Any] = []
        self._operations: list[Operation] = []
        self._schemas: dict[str, str] = {}

    def program(self, description: Description, input_names: Sequence[str]) -> Program:
        self._read_placeholders()
        self._refuse_operators()
        for node in self._exported.graph.nodes:
            if node.op == "call_function":
                self._add(node)
        outputs = self._outputs()
        signature = ModelSignature(
            model=description.model,
            version=description.version,
            inputs=tuple(_tensor_spec(name, node) for name, node in zip(input_names, self._inputs, strict=True)),
            outputs=tuple(
                _tensor_spec(name, node)
                for name, node in zip(description.output_names or self._output_names(len(outputs)), outputs, strict=True)
            ),
            kind=description.kind,
            details=description.details or {},
        )
        return Program(
            torch_version=torch.__version__.split("+")[0],
            schema_sha256=schema_sha256(self._schemas.values()),
            signature=signature,
            inputs=tuple(node.name for node in self._inputs),
            outputs=tuple(self._values[node.name] for node in outputs),
            weights=self._weights_read(outputs),
            operations=tuple(self._operations),
        )

    def _read_placeholders(self) -> None:
        stored = {**self._exported.state_dict, **self._exported.constants}
        by_name = {node.name: node for node in self._exported.graph.nodes if node.op == "placeholder"}
        for spec in self._exported.graph_signature.input_specs:
            name = getattr(spec.arg, "name", "")
            if spec.kind is InputKind.USER_INPUT and isinstance(by_name[name].meta.get("val"), Tensor):
                self._inputs.append(by_name[name])
                self._values[name] = name
            elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR) and spec.target in stored:
                self._values[name] = self.weights.add(self._weight_name(spec), stored[str(spec.target)])
            else:
                raise unsupported(f"The model's input {name!r} is not a tensor.", "A layer program takes tensors only.")

    def _weight_name(self, spec: InputSpec) -> str:
        """The weight's path in the module, or its placeholder's name where a value has that one: they share a program's names.

        Example: beside an operation's result `mean`, the buffer `mean` is kept as `b_mean`.
        """
        path = str(spec.target)
        return str(spec.arg.name) if path in self._node_names else path

    def _refuse_operators(self) -> None:
        refused = set()
        for node in self._exported.graph.nodes:
            if node.op == "get_attr":
                refused.add(f"a sub-graph ({node.target})")
            elif node.op == "call_function" and not _is_structure(node):
                if str(node.target) not in ALLOWED_OPERATORS:
                    refused.add(str(node.target))
                elif free_unbacked_symbols(node.meta["val"]):
                    refused.add(f"{node.target} with a result whose size depends on values")
        if refused:
            raise unsupported(
                f"The model uses operators that a layer program cannot hold: {', '.join(sorted(refused))}.",
                "A layer program holds the operators that gnomon_core.program lists; custom, higher-order, random and "
                "data-dependent ones can never be among them. Serve the model from a handler (docs/howto) or replace them.",
            )

    def _add(self, node: Any) -> None:
        if node.target is operator.getitem:
            return
        if _is_structure(node):
            return
        op = str(node.target)
        self.modules.append(_module_path(node))
        self._schemas[op] = str(node.target._schema)  # noqa: SLF001 - what print(overload) shows
        self._operations.append(
            Operation(
                op=op,
                args=tuple(argument_of(argument, self._values) for argument in node.args),
                results=self._results(node),
                kwargs={name: argument_of(argument, self._values) for name, argument in node.kwargs.items()},
            )
        )

    def _results(self, node: Any) -> tuple[str | None, ...]:
        value = node.meta["val"]
        if isinstance(value, Tensor):
            self._values[node.name] = node.name
            return (node.name,)
        results: list[str | None] = [None] * len(value)
        for user in node.users:
            position = user.args[1]
            results[position] = results[position] or user.name
            self._values[user.name] = str(results[position])
        return tuple(results)

    def _outputs(self) -> list[Any]:
        by_name = {node.name: node for node in self._exported.graph.nodes}
        outputs = []
        for spec in self._exported.graph_signature.output_specs:
            node = by_name.get(getattr(spec.arg, "name", ""))
            if node is None or not isinstance(node.meta.get("val"), Tensor):
                raise unsupported(
                    "One of the model's outputs is not a tensor.", "Return tensors, in a tuple or a dict if there are several."
                )
            outputs.append(node)
        return outputs

    def _output_names(self, count: int) -> tuple[str, ...]:
        spec = self._exported.call_spec.out_spec
        keys = spec.context if spec is not None and spec.type is not None and issubclass(spec.type, dict) else None
        if keys and len(keys) == count:
            return tuple(str(key) for key in keys)
        return ("output",) if count == 1 else tuple(f"output_{index}" for index in range(count))

    def _weights_read(self, outputs: Sequence[Any]) -> dict[str, Weight]:
        read = {name for operation in self._operations for name in operation.reads()} | {
            self._values[node.name] for node in outputs
        }
        self.weights.keep(read)
        return self.weights.described()


def _module_path(node: Any) -> str:
    """The innermost module that was running, as a path such as `layer1.0.conv1`."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = stack[-1][0] if stack else ""
    return ".".join(re.findall(r"[A-Za-z0-9_]+", path))


def _is_structure(node: Any) -> bool:
    """True if a node makes no tensor: it picks one of several results, follows a size, or asserts."""
    if node.target is operator.getitem or str(node.target) in _ASSERTIONS:
        return True
    return isinstance(node.meta.get("val"), torch.SymInt | int | torch.SymBool | bool)


def _tensor_spec(name: str, node: Any) -> TensorSpec:
    value = node.meta["val"]
    sizes = tuple(value.shape)
    if not sizes or not is_batch(sizes[0]) or not all(isinstance(size, int) for size in sizes[1:]):
        raise unsupported(
            f"{name!r} has the shape {sizes}: its first axis must be the batch and no other may depend on it.",
            "Make the batch the first axis of every input and output.",
        )
    if value.dtype not in DATATYPES:
        raise unsupported(f"{name!r} is {value.dtype}.", f"Known ones: {', '.join(map(str, DATATYPES))}.")
    return TensorSpec(name, DATATYPES[value.dtype], sizes[1:])


def unsupported(message: str, hint: str = "") -> GnomonError:
    """422: the model cannot become a layer program."""
    return GnomonError(422, "unsupported_model", message, hint)


def argument_of(argument: Any, values: Mapping[str, str]) -> Argument:
    """The argument as data. `values` maps the names of nodes to those of values."""
    match argument:
        case None | bool() | int() | float() | str():
            return argument
        case Node():
            return _node(argument, values)
        case torch.SymInt():
            return batch_size(argument)
        case list() | tuple():
            return tuple(argument_of(item, values) for item in argument)
    return _constant(argument)


def _constant(argument: Any) -> Constant:
    for kind in (torch.dtype, torch.memory_format, torch.layout):
        if isinstance(argument, kind):
            return Constant(kind.__name__, str(argument).rpartition(".")[2])
    if argument == torch.device("cpu"):
        return Constant("device", "cpu")
    raise unsupported(f"An operation has the argument {str(argument)[:200]!r}, which cannot be written as data.")


def is_batch(size: Any) -> bool:
    """True if a size is the batch itself."""
    return isinstance(size, torch.SymInt) and batch_size(size) == BatchSize(1)


def batch_size(size: Any) -> BatchSize:
    """A size as (times · batch + plus) // over.

    Raises:
        GnomonError: 422 for a size that depends on the batch in any other way.

    """
    expression = sympy.sympify(size.node.expr)
    over = 1
    if expression.func.__name__ in ("FloorDiv", "CleanDiv") and expression.args[1].is_Integer:
        expression, over = expression.args[0], int(expression.args[1])
    symbols = list(expression.free_symbols)
    polynomial = sympy.Poly(expression, *symbols) if len(symbols) == 1 and expression.is_polynomial(*symbols) else None
    if polynomial is None or polynomial.degree() != 1:
        raise unsupported(f"A size follows the batch as {size}: only multiples of the batch are supported.")
    times, plus = polynomial.all_coeffs()
    scale = math.lcm(int(times.q), int(plus.q))
    scaled = BatchSize(int(times * scale), int(plus * scale), over * scale)
    if scaled.times < 0 or scaled.plus < 0:
        raise unsupported(f"A size follows the batch as {size}: it must not shrink when the batch grows.")
    return scaled


def _node(node: Node, values: Mapping[str, str]) -> Argument:
    value = node.meta.get("val")
    if isinstance(value, torch.SymInt):
        return batch_size(value)
    if isinstance(value, int | float | bool):
        return value
    return Value(values[node.name])
