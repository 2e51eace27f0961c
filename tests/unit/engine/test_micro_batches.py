"""Micro-batches of a Shadow that is reached over HTTP: right answers, and harmless ones to nonsense."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnomon_core.errors import GnomonError
from gnomon_core.launch import Launch
from gnomon_core.wire import Frame, Kind, Member, decode, encode
from gnomon_profiler.extractor import Description, capture
from gnomon_runtime.pair.micro_batches import BlocksApplication, read_values, write_values

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    first, second = torch.nn.Conv2d(3, 8, 3), torch.nn.Conv2d(8, 8, 3)
    module = torch.nn.Sequential(first, torch.nn.ReLU(), second, torch.nn.Flatten(), torch.nn.Linear(1152, 5)).eval()
    for name, data in capture(module, (torch.zeros(2, 3, 16, 16),), Description("small", "1")).items():
        (made / name).write_bytes(data)
    return made


def application(folder: Path, blocks: tuple[int, ...]) -> BlocksApplication:
    options = {"program": folder / "program.json", "weights": folder / "weights.safetensors", "layers": folder / "layers.json"}
    names: Mapping[str, Any] = {name: str(path) for name, path in options.items()}
    return BlocksApplication(Launch("shadow", "f", "s", options={**names, "blocks": blocks}))


def operations(folder: Path, first: int, last: int) -> list[int]:
    blocks = json.loads((folder / "layers.json").read_bytes())["blocks"]
    return [blocks[first]["operations"][0], blocks[last]["operations"][1]]


def asked(operations: object, rows: object, members: list[Member], **more: object) -> Frame:
    head = {"kind": "blocks", "operations": operations, "values": rows} | more
    return decode(encode(Frame(Kind.BATCH, 7, 2, head=json.dumps(head).encode(), members=members)))


def test_a_run_is_computed_in_one_go_and_in_two(folder: Path) -> None:
    shadow = application(folder, (0, 1))
    assert shadow.hello()["blocks"] == [0, 1]
    pictures = torch.randn(6, 3, 16, 16)
    rows, members = write_values([pictures], first_row=2)
    answer = shadow.run(asked(operations(folder, 0, 1), rows, members))
    assert isinstance(answer, Frame)
    assert (answer.batch_id, answer.epoch, answer.head_json()["compute_ms"] >= 0) == (7, 2, True)
    assert [(member.code, member.size) for member in answer.members] == [(200, 4)]
    whole = read_values(answer.head_json()["values"], decode(encode(answer)).members)
    first = shadow.run(asked(operations(folder, 0, 0), rows, members))
    assert isinstance(first, Frame)
    between = read_values(first.head_json()["values"], first.members)
    rows, members = write_values(between)
    second = shadow.run(asked(operations(folder, 1, 1), rows, members))
    assert isinstance(second, Frame)
    assert torch.equal(read_values(second.head_json()["values"], second.members)[0], whole[0])


def test_what_is_not_held_is_refused_with_what_is(folder: Path) -> None:
    shadow = application(folder, (1,))
    rows, members = write_values([torch.zeros(2, 3, 16, 16)])
    for wanted in (operations(folder, 0, 0), operations(folder, 0, 1), [0, 10**9], [5, 1]):
        refused = shadow.run(asked(wanted, rows, members))
        assert isinstance(refused, Frame)
        assert refused.members[0].code == 409
        assert "Held: 1." in json.loads(refused.members[0].body)["error"]["hint"]


@pytest.mark.parametrize(
    ("head", "code"),
    [
        ({"kind": "tensors"}, 415),
        ({"operations": "all"}, 400),
        ({"operations": [0, True]}, 400),
        ({"values": []}, 400),
        ({"values": [{"datatype": "FP32", "shape": [2, 3, 16, 16], "order": [0, 1, 2, 2]}]}, 400),
        ({"values": [{"datatype": "FP32", "shape": [2, 3, 16, 16], "order": [1, 0, 2, 3]}]}, 400),
        ({"values": [{"datatype": "FP32", "shape": [2, 3, 16, 17], "order": [0, 1, 2, 3]}]}, 400),
        ({"values": [{"datatype": "FP64", "shape": [2, 3, 16, 16], "order": [0, 1, 2, 3]}]}, 400),
        ({"values": [{"datatype": "FP99", "shape": [2, 3, 16, 16], "order": [0, 1, 2, 3]}]}, 400),
        ({"values": [{"datatype": "FP32", "shape": [1, 6, 16, 16], "order": [0, 1, 2, 3]}]}, 400),
    ],
)
def test_nonsense_is_a_refusal_for_every_member(folder: Path, head: dict[str, object], code: int) -> None:
    rows, members = write_values([torch.zeros(2, 3, 16, 16)])
    document = {"kind": "blocks", "operations": operations(folder, 0, 0), "values": rows} | head
    refused = application(folder, (0,)).run(Frame(Kind.BATCH, 1, head=json.dumps(document).encode(), members=members))
    assert isinstance(refused, Frame)
    assert [member.code for member in refused.members] == [code] * len(members)


def test_values_of_another_form_fail_without_an_end(folder: Path) -> None:
    shadow = application(folder, (0,))
    rows, members = write_values([torch.zeros(2, 7)])
    failed = shadow.run(asked(operations(folder, 0, 0), rows, members))
    assert isinstance(failed, Frame)
    assert failed.members[0].code in (422, 500)
    rows, members = write_values([torch.zeros(2, 3, 16, 16)])
    good = shadow.run(asked(operations(folder, 0, 0), rows, members))
    assert isinstance(good, Frame)
    assert good.members[0].code == 200


@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    dtype=st.sampled_from([torch.float32, torch.int64, torch.bool, torch.bfloat16]),
    last=st.booleans(),
    data=st.data(),
)
def test_tensors_survive_the_way_in_their_layout(
    shape: list[int], dtype: torch.dtype, data: st.DataObject, *, last: bool
) -> None:
    tensor = (torch.rand(shape) * 100).to(dtype)
    if last and len(shape) == 4:
        tensor = tensor.to(memory_format=torch.channels_last)
    first_row = data.draw(st.integers(0, shape[0] - 1))
    rows, members = write_values([tensor], first_row=first_row)
    sent = decode(encode(Frame(Kind.BATCH, members=members)))
    (back,) = read_values(json.loads(json.dumps(rows)), sent.members)
    assert torch.equal(back, tensor[first_row:])
    assert back.dtype == tensor.dtype


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5), st.lists, max_leaves=8)


@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {
                "datatype": st.sampled_from(["FP32", "BOOL", "INT64"]) | JSON,
                "shape": st.lists(st.integers(-1, 3), max_size=3) | JSON,
                "order": st.lists(st.integers(-1, 2), max_size=3) | JSON,
            }
        )
        | JSON,
        max_size=3,
    )
    | JSON,
    members=st.lists(st.builds(Member, st.just(0), st.integers(0, 3), st.just(b""), st.binary(max_size=48)), max_size=3),
)
@settings(max_examples=500)
def test_whatever_comes_is_read_or_refused(rows: object, members: list[Member]) -> None:
    values: list[torch.Tensor] = []
    with contextlib.suppress(GnomonError):
        values = read_values(rows, members)
    assert not values or [value.nbytes for value in values] == [len(member.body) for member in members]
