"""A Shadow that is reached over HTTP: micro-batches in frames, for a Body that is on another node.

    Body ──BATCH {"kind": "blocks", "operations": [5, 90], "values": [row …]}, a member for each tensor──▶ POST /gnomon/batch
    Body ◀──RESULT {"values": [row …], "compute_ms": 12.3}, a member for each tensor── Shadow

A row is {"datatype": "FP32", "shape": [4, 64, 56, 56], "order": [0, 2, 3, 1]}: the tensor's bytes lie dense in its member's body,
axes from the slowest to the fastest in `order`, so that both sides compute on the same layout and get the same bits. The first
axis counts the samples, and is the member's size. A run is named by its operations, which must be whole blocks that are held.

It is an application like any other: the image's port, probes, token, deadline, epoch and drain are those of a Body's image.
What comes is checked before it is computed, because the token may be known to more than one Body.

`Launch.options`: `program`, `weights` and `layers` (paths), `weight_mode`, and `blocks`, the numbers of those to hold.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gnomon_core.errors import GnomonError, bad_request
from gnomon_core.launch import Launch
from gnomon_core.wire import Frame, Kind, Member, WireError
from gnomon_runtime.answers import JSON
from gnomon_runtime.engine.allocator import keep_freed_memory
from gnomon_runtime.engine.datatypes import TORCH_DTYPES
from gnomon_runtime.pair.buffers import datatype_of, memory_order
from gnomon_runtime.pair.headers import MAX_AXES, MAX_SAMPLES, MAX_TENSORS
from gnomon_runtime.pair.shadow_model import HeldBlocks

KIND = "blocks"


class BlocksApplication:
    """The blocks of a model that a Shadow holds, as an application. Used by one thread at a time."""

    def __init__(self, launch: Launch) -> None:
        keep_freed_memory()
        torch.set_num_threads(launch.cores)
        options = launch.options
        program, weights, layers = (Path(options[name]) for name in ("program", "weights", "layers"))
        self._held = HeldBlocks(program, weights, layers, options.get("weight_mode", "shared"))
        self._held.hold(options["blocks"])

    def hello(self) -> Mapping[str, Any]:
        return {"kind": "shadow", "blocks": list(self._held.blocks), "resident_bytes": self._held.resident_bytes}

    def resize(self, cores: int) -> None:
        torch.set_num_threads(cores)

    def run(self, batch: Frame) -> Frame | Iterator[Frame]:
        try:
            return self._computed(batch)
        except GnomonError as error:
            refused = error
        except Exception as error:  # noqa: BLE001 - a kernel may raise anything; the Body computes the samples itself
            refused = GnomonError(500, "blocks_failed", f"The blocks raised {type(error).__name__}.", "Look at the values.")
        member = Member(refused.status, 1, JSON, refused.body())
        return Frame(Kind.RESULT, batch.batch_id, batch.epoch, members=[member] * len(batch.members))

    def _computed(self, batch: Frame) -> Frame:
        head = _head(batch)
        segment = self._held.segment(*_operations(head))
        if segment is None:
            held = ", ".join(map(str, self._held.blocks))
            raise GnomonError(409, "blocks_not_held", "These operations are not whole blocks held here.", f"Held: {held}.")
        values = read_values(head.get("values"), batch.members)
        if len(values) != len(segment.border.reads):
            raise bad_request("wrong_values", f"The operations read {len(segment.border.reads)} values, not {len(values)}.")
        began_s = time.monotonic()
        made = segment.run(values[0].shape[0], values)
        compute_ms = round(1e3 * (time.monotonic() - began_s), 3)
        rows, members = write_values(made, 200)
        answer = json.dumps({"values": rows, "compute_ms": compute_ms}).encode()
        return Frame(Kind.RESULT, batch.batch_id, batch.epoch, head=answer, members=members)


def write_values(tensors: Sequence[Tensor], code: int = 0, first_row: int = 0) -> tuple[list[dict[str, Any]], list[Member]]:
    """The rows from `first_row` on of some tensors, as a head's list of values and as members."""
    rows: list[dict[str, Any]] = []
    members: list[Member] = []
    for tensor in tensors:
        part = tensor[first_row:]
        order = memory_order(part)
        raw = part.permute(order).contiguous().view(-1).view(torch.uint8)
        rows.append({"datatype": datatype_of(part), "shape": list(part.shape), "order": list(order)})
        members.append(Member(code, part.shape[0], b"", memoryview(raw.numpy().data)))
    return rows, members


def read_values(rows: object, members: Sequence[Member]) -> list[Tensor]:
    """The tensors of members, one of them each, all of the same number of samples.

    Raises:
        GnomonError: 400 `wrong_values` where rows and members do not fit together.

    """
    if not isinstance(rows, list) or not 1 <= len(rows) <= MAX_TENSORS or len(rows) != len(members):
        raise bad_request("wrong_values", "There is not one row for each member.", "See gnomon_runtime.pair.micro_batches.")
    values = [_read_value(row, member) for row, member in zip(rows, members, strict=True)]
    if len({value.shape[0] for value in values}) != 1:
        raise bad_request("wrong_values", "The values differ in their number of samples.")
    return values


def _read_value(row: object, member: Member) -> Tensor:
    datatype, shape, order = _row(row)
    dtype, length = TORCH_DTYPES[datatype], math.prod(shape) * TORCH_DTYPES[datatype].itemsize
    if shape[0] != member.size or len(member.body) != length:
        raise bad_request("wrong_values", f"{member.size} samples in {len(member.body)} bytes are no {datatype} {shape}.")
    # A tensor of its own: what lies somewhere in a frame is not aligned, and kernels give other last bits there.
    raw = torch.empty(length, dtype=torch.uint8)
    memoryview(raw.numpy().data)[:] = memoryview(member.body)
    flat = raw.ne(0) if dtype is torch.bool else raw.view(dtype)
    dense = flat.view([shape[axis] for axis in order])
    return dense.permute([order.index(axis) for axis in range(len(order))])


def _row(row: object) -> tuple[str, list[int], list[int]]:
    if not isinstance(row, dict):
        raise bad_request("wrong_values", "A row is no object.")
    datatype, shape, order = row.get("datatype"), row.get("shape"), row.get("order")
    if not isinstance(datatype, str) or datatype not in TORCH_DTYPES or not _sizes(shape) or not _sizes(order, least=0):
        raise bad_request("wrong_values", "A row's datatype, shape or order is none.")
    assert isinstance(shape, list)
    assert isinstance(order, list)
    if sorted(order) != list(range(len(shape))) or order[0] != 0 or shape[0] > MAX_SAMPLES:
        raise bad_request("wrong_values", f"The order {order} is none of the shape {shape}.")
    return datatype, shape, order


def _sizes(numbers: object, least: int = 1) -> bool:
    whole = isinstance(numbers, list) and all(type(number) is int and least <= number < 1 << 40 for number in numbers)
    return whole and isinstance(numbers, list) and 1 <= len(numbers) <= MAX_AXES


def _head(batch: Frame) -> dict[str, Any]:
    try:
        head = batch.head_json()
    except (WireError, RecursionError):
        head = {}
    if head.get("kind") != KIND:
        raise GnomonError(
            415, "unsupported_media_type", "A Shadow computes layer blocks for its Body and takes no requests.", "Ask the Body."
        )
    return head


def _operations(head: Mapping[str, Any]) -> tuple[int, int]:
    operations = head.get("operations")
    if not isinstance(operations, list) or [type(number) for number in operations] != [int, int]:
        raise bad_request("wrong_operations", "operations are not two whole numbers.", 'Send "operations": [begin, end].')
    return operations[0], operations[1]
