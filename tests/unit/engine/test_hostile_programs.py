"""Programs that would read files, grow without a bound, or confuse types are refused before they do."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gnomon_core.errors import GnomonError
from gnomon_core.program import ALLOWED_OPERATORS, Constant, Program
from gnomon_runtime.engine import Executor, Limits
from gnomon_runtime.engine.sizes import RULES
from tests.refusals import refused

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    "op",
    [
        "aten.from_file.default",
        "aten.set_.source_Tensor",
        "aten.resize_.default",
        "aten.as_strided.default",
        "aten.relu_.default",
        "aten.copy_.default",
        "aten.rand.default",
        "aten.nonzero.default",
        "aten.unique2.default",
        "prims.convert_element_type.default",
        "quantized.linear.default",
    ],
)
def test_an_operator_outside_the_list_is_refused_by_name(op: str, program: Callable[..., Program]) -> None:
    with refused(code="invalid_program", match=op.replace(".", r"\.")):
        Executor(program([(op, ("%x",), "y")], "y"), {})


def test_every_allowed_operator_exists_changes_nothing_and_has_a_size_rule() -> None:
    for name in ALLOWED_OPERATORS:
        _, base, overload = name.split(".")
        schema = getattr(getattr(torch.ops.aten, base), overload)._schema
        assert not schema.is_mutable, name
        assert "Generator" not in str(schema), name
        assert name in RULES


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (("aten.relu.default", ("/etc/passwd",), "y"), "needs Tensor as self"),
        (("aten.softmax.int", ("%x", "one"), "y"), "needs int as dim"),
        (("aten.softmax.int", ("%x", True), "y"), "needs int as dim"),
        (("aten.softmax.int", ("%x",), "y"), "lacks dim"),
        (("aten.softmax.int", ("%x", 1, Constant("dtype", "float32"), 4), "y"), "has 4 arguments"),
        (("aten.softmax.int", ("%x", 1, Constant("layout", "strided")), "y"), "needs Optional[ScalarType] as dtype"),
        (("aten.softmax.int", ("%x", 1, Constant("dtype", "quint8")), "y"), "'quint8' is not known"),
        (("aten.full.default", ([4], 0.0), "y", {"device": Constant("device", "cuda")}), "'cuda' is not known"),
        (("aten.add.Tensor", ("%x", "%x"), "y", {"out": 1}), "no argument 'out'"),
        (("aten.add.Tensor", ("%x", "%x"), ("y", "z")), "names 2 results"),
        (("aten.cat.default", (["%x", 3],), "y"), "number"),
    ],
)
def test_arguments_of_a_wrong_kind_are_refused(call: tuple[Any, ...], says: str, program: Callable[..., Program]) -> None:
    if call[0] == "aten.cat.default":
        # A number where torch takes one for a tensor passes the types; the size rule and torch decide.
        executor = Executor(program([call], "y"), {})
        with pytest.raises(Exception, match=r"(?i)tensor|number"):
            executor.run([torch.zeros(1, 4)])
        return
    with refused(message=says):
        Executor(program([call], "y"), {})


@pytest.mark.parametrize(
    "call",
    [
        ("aten.full.default", ([1 << 40], 1.0), "y"),
        ("aten.full.default", ([1 << 20, 1 << 20, 1 << 20], 1.0), "y"),
        ("aten.arange.default", (1 << 40,), "y"),
        ("aten.arange.start_step", (0, 1, 1e-12), "y"),
        ("aten.linspace.default", (0, 1, 1 << 40), "y"),
        ("aten.eye.default", (1 << 20,), "y"),
        ("aten.repeat.default", ("%x", [1 << 20, 1 << 20]), "y"),
        ("aten.repeat_interleave.self_int", ("%x", 1 << 40), "y"),
        ("aten.pad.default", ("%x", [0, 1 << 40]), "y"),
        ("aten.constant_pad_nd.default", ("%x", [1 << 30, 1 << 30]), "y"),
        ("aten.new_zeros.default", ("%x", [1 << 40]), "y"),
        ("aten.conv1d.default", ("%x", "%w", None, [1], [1 << 40]), "y"),
        ("aten.conv_transpose1d.default", ("%x", "%w", None, [1 << 40]), "y"),
        ("aten.adaptive_avg_pool2d.default", ("%x4", [1 << 20, 1 << 20]), "y"),
        ("aten.upsample_nearest2d.vec", ("%x4", [1 << 20, 1 << 20], None), "y"),
        ("aten.upsample_nearest2d.vec", ("%x4", None, [1e6, 1e6]), "y"),
        ("aten.einsum.default", ("ab,cd->abcd", ["%column", "%row"]), "y"),
        ("aten.mul.Tensor", ("%row", "%column"), "y"),
        ("aten.matmul.default", ("%column", "%row"), "y"),
        ("aten.unbind.int", ("%long", 0), ("y",)),
        ("aten.split.Tensor", ("%long", 1), ("y",)),
    ],
    ids=lambda call: call[0],
)
def test_sizes_without_a_bound_are_refused_before_anything_is_allocated(
    call: tuple[Any, ...], program: Callable[..., Program]
) -> None:
    shapes: list[tuple[Any, ...]] = [
        ("aten.reshape.default", ("%x", [1, 1, 2, 2]), "x4"),
        ("aten.expand.default", ("%one", [1 << 20, 1]), "column"),
        ("aten.expand.default", ("%one", [1, 1 << 20]), "row"),
        ("aten.expand.default", ("%single", [1 << 40]), "long"),
    ]
    weights = {"w": torch.ones(1, 4, 1), "one": torch.ones(1, 1), "single": torch.ones(1)}
    if call[0].startswith("aten.conv"):
        weights["w"] = torch.ones(4, 4, 1) if "transpose" in call[0] else torch.ones(1, 1, 1)
    executor = Executor(program([*shapes, call], "y", weights=weights), weights)
    with refused(code="invalid_program", match=r"could make|pieces"):
        executor.run([torch.zeros(1, 4)])


def test_values_that_are_alive_together_are_bounded(executor: Callable[..., Executor]) -> None:
    calls = [("aten.repeat.default", ("%x", [1, 1000]), f"big{index}") for index in range(20)]
    calls.append(("aten.cat.default", ([f"%big{index}" for index in range(20)],), "y"))
    with pytest.raises(GnomonError, match="bytes that are alive"):
        executor(calls, "y", limits=Limits(max_live_bytes=200_000)).run([torch.zeros(1, 4)])


def test_a_mask_whose_result_follows_the_values_is_refused(executor: Callable[..., Executor]) -> None:
    calls = [
        ("aten.sum.dim_IntList", ("%x", [1]), "sums"),
        ("aten.ge.Scalar", ("%sums", 0), "mask"),
        ("aten.index.Tensor", ("%x", ["%mask"]), "y"),
    ]
    with pytest.raises(GnomonError, match="depend on values"):
        executor(calls, "y").run([torch.zeros(2, 4)])


def test_an_output_that_is_not_what_the_signature_says_is_refused(executor: Callable[..., Executor]) -> None:
    with pytest.raises(GnomonError, match="not a batch of"):
        executor([("aten.sum.dim_IntList", ("%x", [1]), "y")], "y").run([torch.zeros(2, 4)])


def test_a_program_of_other_operators_than_ours_is_refused(program: Callable[..., Program]) -> None:
    made = program([("aten.relu.default", ("%x",), "y")], "y")
    object.__setattr__(made, "schema_sha256", "0" * 64)
    with pytest.raises(GnomonError, match="captured with torch"):
        Executor(made, {})
