"""Execution times of batches: the whole model and each of its blocks, by the number of cores.

Order: `program`, `weights` and `layers` (paths), `cores`, `cpus` to run on, `batches`, `repeats` (the least number of each), and
`budget_s` (as long as it is not spent, a batch is repeated up to `most_repeats` times).

Answer, for each batch: `batch`, `whole_s`, `range_s` (interquartile), `repeats`, and of each block `blocks_s` and
`block_ranges_s`. Blocks are measured inside whole runs; their medians are scaled so that they sum to the whole's median, which
the medians of parts do not do by themselves (by some tenths of a percent).

How long weights take to load: those of each block, and those of growing parts of the model.

Order: `program`, `weights` and `layers` (paths), `mode` ("shared" or "private"), `sets` of block numbers, `repeats`.
Answer, once: `seconds` and `ranges_s` of each set.

Each loading is that of a fresh fork, since a process that has mapped a page before has it in its page table. It is what a Shadow
does: `shared` maps the file and makes the pages of its blocks resident, from a page cache that is warm, as on a node that has
served the model; `private` reads them from there into memory of its own. What it costs to get the file to the node at all is the
storage's bandwidth and not this machine's.

What an instance holds besides its weights: memory that is its own, which a further instance takes again.

Order: `program`, `weights` (paths), `batch` (the largest). Answer, once: `idle_bytes` after loading and a batch of one,
`busy_bytes` after the largest batch (the allocator keeps what it once needed), and `proportional_bytes`, in which pages that are
shared with the process that was forked from count by their share. The weight file's mapping is in none of them.

What it costs to hand tensors to a Shadow on another node, by their size, as far as one machine can say: TCP over loopback.

Order: `sizes_bytes`, `repeats`, `cpus` (the first sends, the last receives). Answer, once: `sizes_bytes`, and `seconds` and
`ranges_s` of each, one way: the rows are copied into the sender's buffer, message and rows go over a stream as a pair's do, the
other side wakes and has them in its own buffer. There is no wire in it: a lower bound for any network, and what an operator's own
figures of a network are added to.

What lies between a decision and an instance besides loading its weights, where no platform was there to be asked.

Order: `program`, `weights` (paths), `cpus`, `repeats`. Answer, once: `shadow_s`, from an order to a process that was forked
before until the program is checked and bound, and `body_s`, until it has also answered a first batch of one. The loading of
weights is taken out of both: it is what `loading` measures.

A sample in two numbers: its median and its interquartile range.

What it costs to hand tensors over, by their size: through shared memory that both sides keep.

Order: `sizes_bytes`, `repeats`, `cpus` (the first sends, the last receives). Answer, once: `sizes_bytes`, and `seconds` and
`ranges_s` of each, one way: the rows are copied into a buffer as a pair has it, a header goes over a socket, the other side wakes
and copies the rows out. The buffer is made and touched once, as a pair's is.

A run of a program with a time stamp at each border between layer blocks.

The stamps are taken inside the whole run, so the pieces sum to it: a block measured by itself would find its inputs in other
caches and its memory in another state. A stamp costs some 50 ns, far below what any block takes.
"""

from __future__ import annotations

import gc
import json
import math
import mmap
import os
import re
import select
import socket
import statistics
import struct
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from gnomon_core import packets, shared_memory
from gnomon_core.blocks import Layers
from gnomon_core.engines import BF16, FP32, PROGRAM, split_name
from gnomon_core.example_inputs import example_inputs
from gnomon_core.process_memory import peak_bytes, resident_bytes
from gnomon_core.program import Program, Weight, parse_program
from gnomon_core.shared_memory import aligned
from gnomon_runtime.child_init import use_cores
from gnomon_runtime.engine.executor import Executor
from gnomon_runtime.engine.graphs import GraphModel, graph_files
from gnomon_runtime.engine.loaded_model import ModelSegment
from gnomon_runtime.engine.torch_support import TORCH_DTYPES, keep_freed_memory
from gnomon_runtime.engine.weights import BlockWeights, LoadedWeights, WeightMode, load_weights
from gnomon_runtime.instance import pin
from gnomon_runtime.pair.headers import Kind, Message
from gnomon_runtime.pair.link import OwnBuffer
from gnomon_runtime.pair.remote_link import Incoming, Outgoing, prepare
from gnomon_runtime.pair.shadow_model import HeldGraph


def median_and_range(values: Sequence[float]) -> tuple[float, float]:
    """The median, and the distance between the quartiles; 0 for fewer than two values.

    Example: 1, 2, 3, 4, 5 gives (3, 2).
    """
    if len(values) == 1:
        return values[0], 0.0
    quarter, middle, three_quarters = statistics.quantiles(values, n=4, method="inclusive")
    return middle, three_quarters - quarter


WARM_UP_RUNS = 2
"""Runs before a measurement: the first is checked and slow; the second follows the plan, and fills the allocator's memory."""


def measure_latency(order: Mapping[str, Any], report: Callable[[dict[str, Any]], None]) -> None:
    """Measure each batch and report it as soon as it is done."""
    keep_freed_memory()
    pin(tuple(order["cpus"]))
    use_cores(int(order["cores"]))
    model = load_subject(order)
    touch(model.weights.tensors)
    ends = [block.end for block in read_layers(Path(order["layers"])).blocks]
    gc.collect()
    gc.freeze()
    for batch in order["batches"]:
        runs = _repeat(model, int(batch), ends, order)
        report({"batch": batch} | summary(runs))


def read_layers(path: Path) -> Layers:
    """The blocks in a file.

    Raises:
        ValueError: it holds none.

    """
    return Layers.from_json(json.loads(path.read_bytes()))


def summary(runs: Sequence[Sequence[float]]) -> dict[str, Any]:
    """The report of a batch: `runs` holds the seconds of each block in each run."""
    whole_s, range_s = median_and_range([sum(run) for run in runs])
    blocks = [median_and_range(block) for block in zip(*runs, strict=True)]
    scale = whole_s / (sum(block_s for block_s, _ in blocks) or 1.0)
    return {
        "whole_s": whole_s,
        "range_s": range_s,
        "repeats": len(runs),
        "blocks_s": [block_s * scale for block_s, _ in blocks],
        "block_ranges_s": [block_range_s for _, block_range_s in blocks],
    }


def _repeat(
    model: TimedProgram | TimedGraph, batch: int, ends: Sequence[int], order: Mapping[str, Any]
) -> list[tuple[float, ...]]:
    inputs = model.inputs(batch)
    for _ in range(WARM_UP_RUNS):
        model.timed_run(inputs, ends)
    runs: list[tuple[float, ...]] = []
    end_s = time.perf_counter() + float(order["budget_s"])
    while len(runs) < int(order["repeats"]) or (time.perf_counter() < end_s and len(runs) < int(order["most_repeats"])):
        runs.append(model.timed_run(inputs, ends))
    return runs


def measure_engines(order: Mapping[str, Any], report: Callable[[dict[str, Any]], None]) -> None:
    """Compare each graph with the program and time all of them in turn, on one core.

    Order: `program`, `weights`, `graphs` (by engine with its precision, their files by name), `cpus`, `batches`, `repeats`,
    `budget_s`; and where they are to be used, `layers` and the files `samples` and `validation`. Answer, for the program and then
    each engine: `engine`, and either `reason` or `error`, `latency_s` by batch, `spread` and `load_s`; `pieces_error`;
    `agreement` with the program's top-1 class on the samples, of other precisions than fp32; and `accuracy`.
    """
    keep_freed_memory()
    pin(tuple(order["cpus"]))
    use_cores(1)
    timed = load_timed(Path(order["program"]), Path(order["weights"]))
    touch(timed.weights.tensors)
    runs: dict[str, Callable[[Sequence[Tensor]], tuple[Tensor, ...]]] = {PROGRAM: timed.executor.run}
    answers: dict[str, dict[str, Any]] = {PROGRAM: {"engine": PROGRAM, "error": 0.0, "load_s": timed.weights.load_s}}
    for engine, files in order["graphs"].items():
        answers[engine] = {"engine": engine}
        try:
            _refuse_emulation(engine)
            model = GraphModel(engine, Path(order["program"]), {name: Path(path) for name, path in files.items()}, 1)
            error = max(_relative_error(timed, model, batch) for batch in (3, 1))
            answers[engine] |= _compared(engine, timed, model, order)
        except Exception as failure:  # noqa: BLE001 - an engine may raise anything; the others are measured all the same
            lines = str(failure).strip().splitlines() or [type(failure).__name__]
            answers[engine]["reason"] = lines[0][:300]
        else:
            runs[engine] = model.run
            answers[engine] |= {"error": error, "load_s": model.weights.load_s}
    if order.get("validation"):
        samples, labels = _read_arrays(Path(order["validation"]), timed.program)
        for engine, run in runs.items():
            answers[engine]["accuracy"] = _share_of(_classes(run, samples, timed.program), labels)
    for batch in map(int, order["batches"]):
        seconds = _in_turn(runs, timed.inputs(batch), int(order["repeats"]), float(order["budget_s"]))
        for engine, times_s in seconds.items():
            median_s, range_s = median_and_range(times_s)
            answers[engine].setdefault("latency_s", {})[str(batch)] = median_s
            answers[engine]["spread"] = max(answers[engine].get("spread", 0.0), range_s / median_s)
    for answer in answers.values():
        report(answer)


def measure_variant(order: Mapping[str, Any], report: Callable[[dict[str, Any]], None]) -> None:
    """Load a model on an engine and some cores as an instance does, and run each batch size.

    Order: as of `measure_latency`, with `engine` and `graph` unless the layer program runs. Answer, once: `load_s` from the files
    to the first answer, `latency_s` by batch, `spreads` likewise, `saturation_rps` of the largest batch one after the other, and
    `peak_bytes` of this process above what it had before.
    """
    keep_freed_memory()
    cpus, batches = tuple(order["cpus"]), sorted(map(int, order["batches"]))
    pin(cpus)
    use_cores(int(order["cores"]))
    gc.collect()
    before_bytes = _reset_peak()
    started_s = time.perf_counter()
    model = load_subject(order)
    model.run(model.inputs(1))
    load_s = time.perf_counter() - started_s
    latency_s, spreads, saturation_rps = {}, {}, 0.0
    for batch in batches:
        inputs = model.inputs(batch)
        times_s = _in_turn({"": model.run}, inputs, int(order["repeats"]), float(order["budget_s"]))[""]
        median_s, range_s = median_and_range(times_s)
        latency_s[str(batch)], spreads[str(batch)] = median_s, range_s / median_s
        saturation_rps = batch * len(times_s) / sum(times_s)
    report(
        {
            "load_s": load_s,
            "latency_s": latency_s,
            "spreads": spreads,
            "saturation_rps": saturation_rps,
            "peak_bytes": peak_bytes() - before_bytes,
        }
    )


def _reset_peak() -> int:
    """The resident bytes of this process now, from which on its peak is counted."""
    Path("/proc/self/clear_refs").write_text("5")
    return resident_bytes()


def _refuse_emulation(engine: str) -> None:
    """Raise ValueError for a precision that this CPU has no arithmetic for: the engine would compute in fp32 and not say so."""
    if split_name(engine) == ("openvino", BF16):
        from gnomon_runtime.engine.openvino_graph import has_bf16  # noqa: PLC0415 - an extra

        if not has_bf16():
            raise ValueError("this CPU has no bf16 arithmetic, and OpenVINO would compute in fp32")


def _compared(engine: str, timed: TimedProgram, model: GraphModel, order: Mapping[str, Any]) -> dict[str, Any]:
    """The error of the graph in pieces, and the agreement of a lower precision with the program."""
    comparisons: dict[str, Any] = {}
    inputs = timed.inputs(2)
    if order.get("samples") and split_name(engine)[1] != FP32:
        samples, _ = _read_arrays(Path(order["samples"]), timed.program)
        classes = [_classes(run, samples, timed.program) for run in (model.run, timed.executor.run)]
        comparisons["agreement"] = _share_of(*classes)
        inputs = [tensor[:2].contiguous() for tensor in samples]
    if order.get("layers"):
        comparisons["pieces_error"] = _pieces_error(model, read_layers(Path(order["layers"])), inputs)
    return comparisons


def _pieces_error(model: GraphModel, layers: Layers, inputs: Sequence[Tensor]) -> float:
    """The largest difference between the graph cut at every block and the whole of it, relative to the largest number.

    1 where the graph cannot be cut at these blocks: it serves as a whole.
    """
    try:
        pieces = model.pieces([block.end for block in layers.blocks])
    except ValueError:
        return 1.0
    values = dict(zip(model.program.inputs, inputs, strict=True))
    for segment in pieces:
        reads = [values[name] for name in segment.border.reads]
        values |= zip(segment.border.makes, segment.run(len(inputs[0]), reads), strict=True)
    pairs = zip(model.run(inputs), (values[name] for name in model.program.outputs), strict=True)
    return max(float((uncut - cut).abs().max() / uncut.abs().max().clamp_min(1e-12)) for uncut, cut in pairs)


def _share_of(actual: Tensor, expected: Tensor) -> float:
    """The share of equal classes."""
    return float(torch.eq(actual, expected).double().mean())


_SAMPLES_AT_ONCE = 8


def _classes(run: Callable[[Sequence[Tensor]], tuple[Tensor, ...]], samples: Sequence[Tensor], program: Program) -> Tensor:
    """The class of each sample that has the largest score."""
    output = program.signature.scores or 0
    batches = zip(*(torch.split(tensor, _SAMPLES_AT_ONCE) for tensor in samples), strict=True)
    return torch.cat([run([part.contiguous() for part in batch])[output].argmax(1) for batch in batches])


def _read_arrays(path: Path, program: Program) -> tuple[list[Tensor], Tensor]:
    """The inputs in a file that the profiler wrote, in the program's order, and the labels; none where it has none."""
    with np.load(path, allow_pickle=False) as file:
        labels = torch.from_numpy(file["labels"]) if "labels" in file.files else torch.empty(0)
        return [torch.from_numpy(file[spec.name]) for spec in program.signature.inputs], labels


def _relative_error(timed: TimedProgram, model: GraphModel, batch: int) -> float:
    """The largest difference between the outputs, relative to the largest number of each; infinite where a value is no number."""
    inputs = timed.inputs(batch)
    worst = 0.0
    for ours, theirs in zip(timed.executor.run(inputs), model.run(inputs), strict=True):
        if not ours.numel():
            continue
        expected, actual = ours.double(), theirs.double()
        error = float((expected - actual).abs().max() / expected.abs().max().clamp_min(1e-12))
        worst = max(worst, error) if math.isfinite(error) else math.inf
    return worst


def _in_turn(
    runs: Mapping[str, Callable[[Sequence[Tensor]], Any]], inputs: Sequence[Tensor], repeats: int, budget_s: float
) -> dict[str, list[float]]:
    """Measure the seconds of each run in turn, so that a disturbance hits one repeat of all and not all repeats of one."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        for _ in range(WARM_UP_RUNS):
            run(inputs)
    ended_s = time.perf_counter() + budget_s * len(runs)
    while len(next(iter(seconds.values()))) < repeats or time.perf_counter() < ended_s:
        for name, run in runs.items():
            started_s = time.perf_counter()
            run(inputs)
            seconds[name].append(time.perf_counter() - started_s)
    return seconds


_SECONDS = struct.Struct("d")
_COMPILE_REPEATS = 3
"""Repeats of compiling, which takes tens of milliseconds for each set and varies little."""


def measure_loading(order: Mapping[str, Any], report: Callable[[dict[str, Any]], None]) -> None:
    """Measure each set, going round so that a disturbance hits one repeat of many sets and not all repeats of one."""
    if "graph" in order:
        _measure_compiling(order, report)
        return
    path, mode = Path(order["weights"]), order["mode"]
    expected = parse_program(Path(order["program"]).read_bytes()).weights
    layers = read_layers(Path(order["layers"]))
    sets = [layers.weights(numbers) for numbers in order["sets"]]
    _load_s(path, expected, mode, expected)
    repeats = [[_in_a_fork(path, expected, mode, names) for names in sets] for _ in range(int(order["repeats"]))]
    points = [median_and_range(seconds) for seconds in zip(*repeats, strict=True)]
    report({"seconds": [seconds for seconds, _ in points], "ranges_s": [range_s for _, range_s in points]})


def _measure_compiling(order: Mapping[str, Any], report: Callable[[dict[str, Any]], None]) -> None:
    """Seconds until a Shadow has compiled its blocks, for each set of them. Weights are read from a warm page cache."""
    graph = HeldGraph(order["engine"], Path(order["program"]), Path(order["layers"]), graph_files(order), 1)
    sets = [list(numbers) for numbers in order["sets"]]
    graph.hold(range(len(graph.layers.blocks)))
    repeats = [[_compile_s(graph, numbers) for numbers in sets] for _ in range(_COMPILE_REPEATS)]
    points = [median_and_range(seconds) for seconds in zip(*repeats, strict=True)]
    report({"seconds": [seconds for seconds, _ in points], "ranges_s": [range_s for _, range_s in points]})


def _compile_s(graph: HeldGraph, numbers: Sequence[int]) -> float:
    graph.release()
    started_s = time.perf_counter()
    graph.hold(numbers)
    return time.perf_counter() - started_s


def _load_s(path: Path, expected: Mapping[str, Weight], mode: WeightMode, names: Iterable[str]) -> float:
    started_s = time.perf_counter()
    BlockWeights(path, expected, mode).hold(names)
    return time.perf_counter() - started_s


def _in_a_fork(path: Path, expected: Mapping[str, Weight], mode: WeightMode, names: Iterable[str]) -> float:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, _SECONDS.pack(_load_s(path, expected, mode, names)))
        os._exit(0)
    os.close(write)
    answer = os.read(read, _SECONDS.size)
    os.close(read)
    os.waitpid(child, 0)
    if len(answer) != _SECONDS.size:
        raise RuntimeError("a loading process ended early")
    seconds: float = _SECONDS.unpack(answer)[0]
    return seconds


_MAPPING = re.compile(r"[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \d+ *(.*)")
_PRIVATE = ("Private_Clean", "Private_Dirty")


def measure_memory(order: Mapping[str, Any], report: Callable[[dict[str, Any]], None]) -> None:
    """Load in mode `shared` on one core, run, and read this process's mappings."""
    keep_freed_memory()
    use_cores(1)
    model = load_subject(order)
    touch(model.weights.tensors)
    model.run(model.inputs(1))
    idle_bytes, _ = held_bytes(Path(order["weights"]))
    for _ in range(2):
        model.run(model.inputs(int(order["batch"])))
    busy_bytes, proportional_bytes = held_bytes(Path(order["weights"]))
    report({"idle_bytes": idle_bytes, "busy_bytes": busy_bytes, "proportional_bytes": proportional_bytes})


def held_bytes(weights: Path, smaps: str | None = None) -> tuple[int, int]:
    """Private and proportional bytes of this process, the weight file's mapping left out."""
    text = Path("/proc/self/smaps").read_text(encoding="utf-8", errors="replace") if smaps is None else smaps
    private_kib = proportional_kib = 0
    counted = True
    for line in text.splitlines():
        mapping = _MAPPING.fullmatch(line)
        if mapping:
            counted = mapping.group(1) != str(weights.resolve())
            continue
        name, _, value = line.partition(":")
        if counted and name in _PRIVATE:
            private_kib += int(value.split()[0])
        elif counted and name == "Pss":
            proportional_kib += int(value.split()[0])
    return 1024 * private_kib, 1024 * proportional_kib


_STAMP = struct.Struct("d")
_PAUSE_S = 0.002
"""Pause in seconds between hand-overs, so that the receiver sleeps when one comes, as a Shadow does."""


def measure_network(order: Mapping[str, Any], report: Callable[[dict[str, Any]], None]) -> None:
    """Hand tensors of each size to a fork, going round."""
    sizes = [int(size) for size in order["sizes_bytes"]]
    cpus = list(order["cpus"])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
    stamps, stamp = os.pipe()
    child = os.fork()
    if child == 0:
        client.close()
        _receive(server, stamp, aligned(max(sizes)), cpus[-1:])
    server.close()
    os.close(stamp)
    pin(tuple(cpus[:1]))
    torch.set_num_threads(1)
    prepare(client)
    buffer = OwnBuffer(aligned(max(sizes)))
    buffer.prepare(max(sizes))
    rows = torch.randint(0, 255, (1, max(sizes)), dtype=torch.uint8)
    _hand_over(client, buffer, rows, stamps)
    repeats = [[_hand_over(client, buffer, rows[:, :size], stamps) for size in sizes] for _ in range(int(order["repeats"]))]
    client.close()
    os.close(stamps)
    os.waitpid(child, 0)
    points = [median_and_range(seconds) for seconds in zip(*repeats, strict=True)]
    report({"sizes_bytes": sizes, "seconds": [seconds for seconds, _ in points], "ranges_s": [range_s for _, range_s in points]})


def _hand_over(connection: socket.socket, buffer: OwnBuffer, rows: Tensor, stamps: int) -> float:
    time.sleep(_PAUSE_S)
    started_s = time.perf_counter()
    written = buffer.write([rows])
    assert written is not None, "the buffer was made for the largest"
    outgoing = Outgoing(Message(Kind.COMPUTE, 1, 0, 1, 1, written), buffer)
    poll = select.poll()
    while not outgoing.push(connection):
        poll.register(connection, select.POLLOUT)
        poll.poll()
    ended_s: float = _STAMP.unpack(os.read(stamps, _STAMP.size))[0]
    return ended_s - started_s


def _receive(connection: socket.socket, stamp: int, size_bytes: int, cpus: Sequence[int]) -> NoReturn:
    pin(tuple(cpus))
    torch.set_num_threads(1)
    prepare(connection)
    buffer = OwnBuffer(size_bytes)
    buffer.prepare(size_bytes)
    incoming, poll = Incoming(buffer), select.poll()
    poll.register(connection, select.POLLIN)
    try:
        while True:
            if incoming.take(connection) is not None:
                os.write(stamp, _STAMP.pack(time.perf_counter()))
            else:
                poll.poll()
    finally:
        os._exit(0)


_SETTLE_S = 0.03
"""Seconds between a fork and its order, in which its page tables are copied: the pool refills between bursts."""
_STAMPS = struct.Struct("2d")


def measure_starts(order: Mapping[str, Any], report: Callable[[dict[str, Any]], None]) -> None:
    """Start so many instances and report the medians."""
    starts = [_start(order) for _ in range(int(order["repeats"]))]
    shadow_s, body_s = (median_and_range(seconds)[0] for seconds in zip(*starts, strict=True))
    report({"shadow_s": shadow_s, "body_s": body_s})


def _start(order: Mapping[str, Any]) -> tuple[float, float]:
    gate_read, gate_write = os.pipe()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(gate_read, 1)
        os.write(write, _STAMPS.pack(*_become_an_instance(order)))
        os._exit(0)
    time.sleep(_SETTLE_S)
    started_s = time.perf_counter()
    os.write(gate_write, b"x")
    os.close(write)
    answer = os.read(read, _STAMPS.size)
    os.waitpid(child, 0)
    for descriptor in (gate_read, gate_write, read):
        os.close(descriptor)
    if len(answer) != _STAMPS.size:
        raise RuntimeError("a starting process ended early")
    shadow_at_s, body_at_s = _STAMPS.unpack(answer)
    return shadow_at_s - started_s, body_at_s - started_s


def _become_an_instance(order: Mapping[str, Any]) -> tuple[float, float]:
    """Start as an instance does; return the clock's seconds at bound weights and at the first answer, loading subtracted."""
    keep_freed_memory()
    pin(tuple(order["cpus"]))
    use_cores(1)
    model = load_subject(order)
    bound_at_s = time.perf_counter() - model.weights.load_s
    started_s = time.perf_counter()
    touch(model.weights.tensors)
    touch_s = time.perf_counter() - started_s
    model.run(model.inputs(1))
    return bound_at_s, time.perf_counter() - model.weights.load_s - touch_s


_HEADER = struct.Struct("q")
"""The header of a hand-over. The receiver sleeps when it comes, as a Shadow does."""


def measure_transfer(order: Mapping[str, Any], report: Callable[[dict[str, Any]], None]) -> None:
    """Hand tensors of each size to a fork, going round."""
    sizes = [int(size) for size in order["sizes_bytes"]]
    cpus = list(order["cpus"])
    descriptor = shared_memory.make("gnomon-transfer", max(sizes))
    body_end, shadow_end = packets.socket_pair()
    child = os.fork()
    if child == 0:
        body_end.close()
        _receive_local(shadow_end, descriptor, cpus[-1:])
    shadow_end.close()
    pin(tuple(cpus[:1]))
    torch.set_num_threads(1)
    shared = torch.frombuffer(mmap.mmap(descriptor, max(sizes)), dtype=torch.uint8)
    rows = torch.randint(0, 255, (max(sizes),), dtype=torch.uint8)
    _hand_over_local(body_end, shared, rows)
    repeats = [[_hand_over_local(body_end, shared, rows[:size]) for size in sizes] for _ in range(int(order["repeats"]))]
    body_end.close()
    os.waitpid(child, 0)
    points = [median_and_range(seconds) for seconds in zip(*repeats, strict=True)]
    report({"sizes_bytes": sizes, "seconds": [seconds for seconds, _ in points], "ranges_s": [range_s for _, range_s in points]})


def _hand_over_local(connection: socket.socket, shared: Tensor, rows: Tensor) -> float:
    time.sleep(_PAUSE_S)
    started_s = time.perf_counter()
    shared[: rows.numel()].copy_(rows)
    connection.send(_HEADER.pack(rows.numel()))
    ended_s: float = _STAMP.unpack(connection.recv(_STAMP.size))[0]
    return ended_s - started_s


def _receive_local(connection: socket.socket, descriptor: int, cpus: Sequence[int]) -> NoReturn:
    pin(tuple(cpus))
    torch.set_num_threads(1)
    size = os.fstat(descriptor).st_size
    shared = torch.frombuffer(mmap.mmap(descriptor, size), dtype=torch.uint8)
    rows = torch.empty(size, dtype=torch.uint8)
    while header := connection.recv(_HEADER.size):
        count: int = _HEADER.unpack(header)[0]
        rows[:count].copy_(shared[:count])
        connection.send(_STAMP.pack(time.perf_counter()))
    os._exit(0)


_PAGE_BYTES = 4096


class TimedExecutor(Executor):
    """An executor that also says how long each piece of a run took."""

    @property
    def planned_batches(self) -> AbstractSet[Hashable]:
        """The batch sizes that have run before."""
        return self._plans.keys()

    def timed_run(self, inputs: Sequence[Tensor], ends: Sequence[int]) -> tuple[float, ...]:
        """Seconds of each piece of one run; piece i ends before operation `ends[i]`, and the last one with the program.

        The batch size must have run before: a first run is checked, and slower.
        """
        plan = self._plans[inputs[0].shape[0]]
        pieces = [replace(plan, steps=plan.steps[begin:end]) for begin, end in pairwise((0, *ends))]
        with torch.inference_mode():
            stamps_s = [time.perf_counter()]
            slots = self._given(plan.slots, inputs)
            for piece in pieces:
                self._walk(piece, slots)
                stamps_s.append(time.perf_counter())
        return tuple(end_s - begin_s for begin_s, end_s in pairwise(stamps_s))


@dataclass(frozen=True, slots=True)
class TimedProgram:
    """A model in memory that can be timed."""

    program: Program
    executor: TimedExecutor
    weights: LoadedWeights

    def inputs(self, batch: int) -> list[Tensor]:
        """Random inputs that the model can compute with, the same at each call."""
        return sample_inputs(self.program, batch)

    def run(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return self.executor.run(inputs)

    def timed_run(self, inputs: Sequence[Tensor], ends: Sequence[int]) -> tuple[float, ...]:
        """Seconds of each piece of one run; the first at a batch size is checked, and its times do not count."""
        if inputs[0].shape[0] not in self.executor.planned_batches:
            self.executor.run(inputs)
        return self.executor.timed_run(inputs, ends)


class TimedGraph:
    """A graph of another engine that can be timed, as a whole and block by block.

    An engine does not say when a block of the whole graph ends, and fuses across borders. So each block is compiled and timed by
    itself, and their times are scaled to sum to the whole's: a block that the engine computes worse alone costs more than its
    share, which is what a Shadow meets.
    """

    def __init__(self, model: GraphModel) -> None:
        self._model = model
        self.weights = model.weights
        self._pieces: dict[tuple[int, ...], Sequence[ModelSegment]] = {}

    def inputs(self, batch: int) -> list[Tensor]:
        """The inputs of `TimedProgram`."""
        return sample_inputs(self._model.program, batch)

    @property
    def program(self) -> Program:
        return self._model.program

    def run(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return self._model.run(inputs)

    def timed_run(self, inputs: Sequence[Tensor], ends: Sequence[int]) -> tuple[float, ...]:
        """Seconds of each piece; piece i ends before operation `ends[i]`. They sum to those of a run of the whole graph."""
        started_s = time.perf_counter()
        self._model.run(inputs)
        whole_s = time.perf_counter() - started_s
        values = dict(zip(self._model.program.inputs, inputs, strict=True))
        pieces_s = []
        for segment in self._segments(tuple(ends)):
            reads = [values[name] for name in segment.border.reads]
            started_s = time.perf_counter()
            results = segment.run(inputs[0].shape[0], reads)
            pieces_s.append(time.perf_counter() - started_s)
            values |= zip(segment.border.makes, results, strict=True)
        return tuple(piece_s * whole_s / sum(pieces_s) for piece_s in pieces_s)

    def _segments(self, ends: tuple[int, ...]) -> Sequence[ModelSegment]:
        if ends not in self._pieces:
            self._pieces[ends] = self._model.pieces(ends)
        return self._pieces[ends]


def load_subject(order: Mapping[str, Any]) -> TimedProgram | TimedGraph:
    """The model that an order names: its layer program, or where the order has a graph, that, compiled for the order's cores.

    Raises:
        GnomonError: 422 `invalid_program`; 501 `engine_missing`.

    """
    program = Path(order["program"])
    if "graph" not in order:
        return load_timed(program, Path(order["weights"]))
    return TimedGraph(GraphModel(order["engine"], program, graph_files(order), int(order.get("cores", 1))))


def sample_inputs(program: Program, batch: int) -> list[Tensor]:
    """The tensors of `example_inputs`, the same at each call."""
    arrays = zip(program.signature.inputs, example_inputs(program, batch), strict=True)
    return [torch.from_numpy(array).to(TORCH_DTYPES[spec.datatype]) for spec, array in arrays]


def load_timed(program: Path, weights: Path) -> TimedProgram:
    """Check a program, load its weights and bind them.

    Raises:
        GnomonError: 422 `invalid_program` when it may not run.

    """
    parsed = parse_program(program.read_bytes())
    loaded = load_weights(weights, parsed.weights)
    return TimedProgram(parsed, TimedExecutor(parsed, loaded.tensors), loaded)


def touch(tensors: Mapping[str, Tensor]) -> None:
    """Read a value of each page, so that mapped weights are resident."""
    for tensor in tensors.values():
        if tensor.numel():
            begin = tensor.storage_offset() * tensor.element_size()
            pages = -(-tensor.numel() * tensor.element_size() // _PAGE_BYTES)
            memory = torch.empty(0, dtype=torch.uint8)
            memory.set_(tensor.untyped_storage(), begin, (pages,), (_PAGE_BYTES,)).max()
