"""The Body's application: a layer program that answers batches.

A batch of tensors is concatenated, run once and cut into the members' answers. A batch of events, an HTTP request each, is a
photograph each for an image classifier: decoded one by one, so that a broken one gets its own 4xx, then classified together.
A forward that raises is retried on each half of the batch, down to the faulty member: one bad input among B costs at most
2·log2(B) further runs and fails no other member.

With a Shadow, batches are computed by both (`pair`). The head of a result then has the timing of each hand-over and the Shadows
of the next batch, so that the gateway can correct its latency predictions without further messages.

`Launch.options`: `program` and `weights` (paths), `weight_mode` ("shared" or "private"), `engine` ("program" unless given) and
`graph` (paths of its files, by name), `sha256` (of the files, by name: the
program's is compared here, the weights' by the model repository, because hashing a mapped file would touch all of it), `layers`
(a path; layers.json beside the program unless given), and `warm_up_batches` (sizes to run before HELLO, [1] unless given).

A member of a tensors batch holds its samples as raw bytes, one input after the other; a result its outputs in the same way. Bytes
are copied once, straight into the batch.
"""

from __future__ import annotations

import hashlib
import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from gnomon_core.errors import GnomonError, bad_request
from gnomon_core.launch import Launch
from gnomon_core.pairs import SHADOWS, pair_to_json
from gnomon_core.program import index_ranges, invalid_program
from gnomon_core.signature import TensorSpec
from gnomon_core.wire import Frame, Kind, Member, error_member, error_result
from gnomon_runtime.application import IdleWork
from gnomon_runtime.engine.graphs import load_model
from gnomon_runtime.engine.loaded_model import LoadedModel, zeros
from gnomon_runtime.engine.torch_support import TORCH_DTYPES, keep_freed_memory
from gnomon_runtime.events import JSON, Event
from gnomon_runtime.image_input import Preprocess, read_image
from gnomon_runtime.pair.body_side import BodySide, left_s
from gnomon_runtime.pair.orders import Coordination
from gnomon_runtime.pair.split_model import RunTiming

IMAGE_CLASSIFICATION = "image-classification"
TOP = 5
Outputs: TypeAlias = tuple[Tensor, ...]


class ModelApplication:
    """The application of an instance with a whole model: `loaded`, or the launch's model, loaded now."""

    def __init__(self, launch: Launch, loaded: LoadedModel | None = None) -> None:
        options = launch.options
        keep_freed_memory()
        torch.set_num_threads(launch.cores)
        program = Path(options["program"])
        sha256 = _check_hash(program, options.get("sha256", {}).get("program.json"))
        self._model = loaded or load_model(options, launch.cores)
        self._signature = self._model.signature
        self._output_head = head_of(self._signature.outputs)
        self._indices = index_ranges(self._model.program)
        details = self._signature.details
        self._labels: Sequence[str] = details.get("labels", ())
        self._preprocess = Preprocess.from_json(details["preprocess"]) if self._signature.kind == IMAGE_CLASSIFICATION else None
        self._pairing = BodySide(self._model, sha256, Path(options.get("layers") or program.with_name("layers.json")))
        self._timings: list[RunTiming] = []
        self._left_s: Callable[[], float | None] = lambda: None
        self._warm_up_ms = {str(batch): self._warm_up(batch) for batch in options.get("warm_up_batches", [1])}

    def hello(self) -> Mapping[str, Any]:
        weights = self._model.weights
        return {
            "kind": "model",
            "engine": self._model.engine,
            "model": self._signature.model,
            "version": self._signature.version,
            "weight_mode": weights.mode,
            "weight_bytes": weights.file_bytes,
            "weight_load_ms": round(1000 * weights.load_s, 3),
            "warm_up_ms": self._warm_up_ms,
        }

    def resize(self, cores: int) -> None:
        self._model.resize(cores)

    def take_orders(self, coordination: socket.socket) -> IdleWork:
        """Carry out a coordinator's orders from this socket, between batches and while idle."""
        return self.listen(Coordination(coordination))

    def listen(self, coordination: Coordination) -> IdleWork:
        """Carry out a coordinator's orders from a socket on which orders have been taken before."""
        self._pairing.listen(coordination)
        return self._pairing

    def run(self, batch: Frame) -> Frame | Iterator[Frame]:
        self._timings = []
        self._left_s = partial(left_s, batch.budget_s, time.monotonic())
        try:
            head = batch.head_json()
            if head.get("kind") == "tensors":
                return self._run_tensors(batch, head)
            return self._run_events(batch)
        except Exception as error:  # noqa: BLE001 - an error is the members' answer, never the instance's end
            return error_result(batch, _reason(error), self._head(b""))

    def _run_tensors(self, batch: Frame, head: Mapping[str, Any]) -> Frame:
        specs = self._signature.inputs
        sent = tuple(TensorSpec.from_json(spec) for spec in head.get("inputs", ()))
        if sent != specs:
            raise bad_request(
                "wrong_inputs", f"The model takes {specs}, not {sent}.", "GET /v2/models/NAME describes the inputs."
            )

        def check(member: Member) -> Member:
            check_member(member, specs)
            check_indices(member, specs, self._indices)
            return member

        self._pairing.send_hint(sum(member.size for member in batch.members))
        answers, good, members = _sort(batch.members, check)
        outputs = self._forward(read_batch(members, specs), [member.size for member in members]) if members else []
        for index, output in zip(good, outputs, strict=True):
            answers[index] = (
                error_member(output)
                if isinstance(output, GnomonError)
                else Member(200, batch.members[index].size, b"", write_sample(output))
            )
        return Frame(Kind.RESULT, batch.batch_id, batch.epoch, head=self._head(self._output_head), members=answers)

    def _run_events(self, batch: Frame) -> Frame:
        answers, good, pictures = _sort(batch.members, self._read_picture)
        if pictures:
            outputs = self._forward([torch.stack(pictures)], [1] * len(pictures))
            for index, output in zip(good, outputs, strict=True):
                answers[index] = error_member(output) if isinstance(output, GnomonError) else self._classified(output)
        return Frame(Kind.RESULT, batch.batch_id, batch.epoch, head=self._head(b""), members=answers)

    def _head(self, head: bytes) -> bytes:
        """A result's head, with its Shadows and the timings of the batch's hand-overs where it has any."""
        fields: dict[str, Any] = {}
        if self._timings:
            fields["pair"] = [timing.to_json() for timing in self._timings]
        if shadows := self._pairing.shadows:
            fields[SHADOWS] = [{"shadow": name, **pair_to_json(pair)} for name, pair in shadows.items()]
        if not fields:
            return head
        document = json.loads(head) if head else {}
        return json.dumps(document | fields).encode()

    def _read_picture(self, member: Member) -> Tensor:
        if self._preprocess is None:
            raise GnomonError(
                415,
                "unsupported_media_type",
                f"{self._signature.model} takes tensors, not files.",
                "Call it with the open inference protocol: POST /v2/models/NAME/infer",
            )
        if not len(member.body) and Event(member.meta, b"").method in ("GET", "HEAD"):
            raise bad_request(
                "empty_body",
                f"{self._signature.model} classifies a photograph.",
                "POST a JPEG or a PNG: curl --data-binary @photo.jpg URL",
            )
        return torch.from_numpy(read_image(member.body, self._preprocess))

    def _classified(self, outputs: Outputs) -> Member:
        confidences, indices = outputs[0].float().softmax(-1).view(-1).topk(min(TOP, outputs[0].numel()))
        top = [
            {"label": self._label(index), "index": index, "confidence": round(confidence, 6)}
            for confidence, index in zip(confidences.tolist(), indices.tolist(), strict=True)
        ]
        document = {"model": self._signature.model, **top[0], "top": top}
        return Member(200, 1, JSON, json.dumps(document, ensure_ascii=False).encode())

    def _label(self, index: int) -> str:
        return self._labels[index] if index < len(self._labels) else str(index)

    def _forward(self, inputs: Sequence[Tensor], sizes: Sequence[int]) -> list[Outputs | GnomonError]:
        """Each member's outputs or error. If the forward of several members raises, they are retried separately."""
        try:
            outputs, timings = self._pairing.run(inputs, self._left_s())
        except Exception as error:  # noqa: BLE001 - a kernel may raise anything
            if len(sizes) == 1:
                return [_reason(error)]
            half = len(sizes) // 2
            cut = sum(sizes[:half])
            first = self._forward([tensor[:cut] for tensor in inputs], sizes[:half])
            return first + self._forward([tensor[cut:] for tensor in inputs], sizes[half:])
        self._timings += timings
        ends = list(accumulate(sizes))
        return [tuple(tensor[end - size : end] for tensor in outputs) for size, end in zip(sizes, ends, strict=True)]

    def _warm_up(self, batch: int) -> float:
        started_s = time.perf_counter()
        self._model.run(zeros(self._signature, batch))
        return round(1000 * (time.perf_counter() - started_s), 3)


def _sort(members: Sequence[Member], read: Callable[[Member], Any]) -> tuple[list[Member], list[int], list[Any]]:
    """Read all members. Returns the answers so far, the indices of valid members, and the values read from them."""
    answers: list[Member] = []
    good: list[int] = []
    ordered: list[Any] = []
    for index, member in enumerate(members):
        try:
            ordered.append(read(member))
        except Exception as error:  # noqa: BLE001 - whatever a library says of a hostile file is that member's answer
            answers.append(error_member(_reason(error)))
        else:
            good.append(index)
            answers.append(Member(500, 1, JSON, b""))
    return answers, good, ordered


def _reason(error: BaseException) -> GnomonError:
    if isinstance(error, GnomonError):
        return error
    text = (str(error).strip().splitlines() or [""])[0][:200].rstrip(".")
    if isinstance(error, IndexError):
        # Operators, shapes and types were checked: only a value can be wrong, such as a token beyond the vocabulary.
        return bad_request(
            "invalid_value", f"A value of the input is out of the model's range: {text}.", "Send values within it."
        )
    return GnomonError(500, "model_failed", f"The model raised {type(error).__name__}: {text}.", "Check the input's values.")


def _check_hash(program: Path, expected: str | None) -> str:
    digest = hashlib.sha256(program.read_bytes()).hexdigest()
    if expected is not None and digest != expected:
        raise invalid_program("The program's file does not have the SHA-256 that its entry states.", "Put the model again.")
    return digest


def check_member(member: Member, specs: Sequence[TensorSpec]) -> None:
    """Raise a 400 `GnomonError` unless the member's body is as long as its samples of these inputs are."""
    expected = member.size * sum(spec.sample_bytes for spec in specs)
    if member.size < 1 or len(member.body) != expected:
        raise bad_request(
            "wrong_size",
            f"{member.size} samples come in {len(member.body)} bytes; they need {expected}.",
            f"Send {', '.join(f'{spec.name}: {spec.datatype} {list(spec.shape)}' for spec in specs)} for each sample.",
        )


def check_indices(member: Member, specs: Sequence[TensorSpec], ranges: Mapping[str, range]) -> None:
    """Raise a 400 `GnomonError` where the member's body has an index outside the `ranges` of the inputs, by their names.

    Engines differ in what they do with one: the program and ONNX Runtime fail, OpenVINO answers as if there were none.
    """
    offset = 0
    for spec in specs:
        length = member.size * spec.sample_bytes
        if (allowed := ranges.get(spec.name)) is not None:
            values = np.frombuffer(memoryview(member.body)[offset : offset + length], spec.numpy_type)
            for value in (int(values.min()), int(values.max())):
                if value not in allowed:
                    raise bad_request(
                        "invalid_value",
                        f"{spec.name} has {value}; the model takes {allowed.start} to {allowed.stop - 1}.",
                        "Send indices within it: those of a text come from the model's own tokenizer.",
                    )
        offset += length


def read_batch(members: Sequence[Member], specs: Sequence[TensorSpec]) -> list[Tensor]:
    """A tensor for each input, with the members' samples concatenated along the first axis."""
    samples = sum(member.size for member in members)
    inputs: list[Tensor] = []
    preceding_bytes = 0
    for spec in specs:
        raw = torch.empty(samples * spec.sample_bytes, dtype=torch.uint8)
        target, at = memoryview(raw.numpy().data), 0
        for member in members:
            offset, length = member.size * preceding_bytes, member.size * spec.sample_bytes
            target[at : at + length] = memoryview(member.body)[offset : offset + length]
            at += length
        inputs.append(_typed(raw, spec).view(samples, *spec.shape))
        preceding_bytes += spec.sample_bytes
    return inputs


def _typed(raw: Tensor, spec: TensorSpec) -> Tensor:
    # torch's kernels assume that a bool is 0 or 1, so a client's bytes are compared with 0, not reinterpreted.
    return raw.ne(0) if spec.datatype == "BOOL" else raw.view(TORCH_DTYPES[spec.datatype])


def write_sample(outputs: Sequence[Tensor]) -> bytes | memoryview:
    """The raw bytes of a member's outputs, one after the other."""
    views = [memoryview(output.contiguous().view(-1).view(torch.uint8).numpy().data) for output in outputs]
    return views[0] if len(views) == 1 else b"".join(views)


def head_of(outputs: Sequence[TensorSpec]) -> bytes:
    """The head of a RESULT frame of tensors."""
    return json.dumps({"outputs": [spec.to_json() for spec in outputs]}).encode()
