"""The answers of pairs, and a Shadow that becomes a Body: what it answers meanwhile, and what it is afterwards."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gnomon_core import packets
from gnomon_core.launch import Launch, Limits, Order, Sandbox
from gnomon_core.pairs import Pair, shadows_of
from gnomon_runtime.engine import LoadedProgram, load_program
from gnomon_runtime.engine.segments import segments_between
from gnomon_runtime.pair.link import joined
from tests.integration.pairs.conftest import HALVES
from tests.pair_harness import FUNCTION, MAX_BATCH, Child, Model, Nursery, Task, change, join, load

pytestmark = pytest.mark.torch


Models = Callable[[str], Model]
Expected = Callable[[Model, Tensor], Tensor]
Start = Callable[..., tuple[Child, Child]]
SPLITS: tuple[Sequence[int], ...] = (HALVES, (0, 1, 2, 3, 4, 5, 6, 7), (0, 0, 1, 1, 1, 1, 1, 1))


@pytest.fixture
def start(nursery: Nursery) -> Iterator[Start]:
    """A Body and its Shadow, ended with the test."""
    made: list[Child] = []

    def pair(task: Task, mode: str = "shared") -> tuple[Child, Child]:
        body, shadow = nursery.body(task.model), nursery.empty()
        made.extend([body, shadow])
        assert load(shadow, task, mode=mode)["say"] == "registered"
        join(body, shadow, task)
        return body, shadow

    yield pair
    for child in made:
        child.end()


def patient(model: Model, blocks: Sequence[int], split: Sequence[int] = HALVES) -> Task:
    """A pair whose Shadow may take its time: this machine may be busy with other things."""
    return Task(model, blocks, split, [[10_000.0] * 8] * len(model.layers.runs(blocks)))


def images(model: Model, samples: int, seed: int = 0) -> Tensor:
    return torch.randn(samples, *model.signature.inputs[0].shape, generator=torch.Generator().manual_seed(seed))


def block_sets(model: Model) -> list[list[int]]:
    """From the input, in the middle, several runs, and all."""
    count = len(model.layers.blocks)
    sets = [[*range(count // 2)], [*range(count // 3, count)], [*range(0, count, 2)], [*range(count)]]
    return [[block for block in blocks if model.layers.blocks[block].splittable] for blocks in sets]


def in_parts(loaded: LoadedProgram, model: Model, task: Task, x: Tensor) -> Tensor:
    """The answer of the split in one process."""
    batch, there = len(x), min(task.split[len(x) - 1], len(x) - 1)
    runs = [(run.begin, run.end) for run in model.layers.runs(task.blocks)] if there else []
    values = dict(zip(loaded.program.inputs, [x], strict=True))
    for segment in segments_between(loaded.program, loaded.weights.tensors, runs):
        given = [values[name] for name in segment.border.reads]
        if (segment.border.begin, segment.border.end) in runs:
            mine = segment.run(batch - there, [value[: batch - there] for value in given])
            theirs = segment.run(there, [value[batch - there :].clone() for value in given])
            made = [joined(first, second) for first, second in zip(mine, theirs, strict=True)]
        else:
            made = list(segment.run(batch, given))
        values |= dict(zip(segment.border.makes, made, strict=True))
    return values[loaded.program.outputs[0]]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(
    "name",
    [
        "resnet18",
        pytest.param("resnet50", marks=pytest.mark.slow),
        pytest.param("inception_v3", marks=pytest.mark.slow),
        "efficientnet-lite0",
    ],
)
def test_a_pair_answers_as_its_model_does(name: str, models: Models, start: Start, expected: Expected) -> None:
    """Bit for bit what the parts are by themselves, and within 1e-5 of the largest number what the whole is.

    At a batch of one a kernel may add in another order than at eight; the Extractor states it of each block.
    """
    model = models(name)
    sets = block_sets(model)
    old = patient(model, sets[0])
    body, shadow = start(old)
    x = images(model, 8)
    loaded = load_program(Path(model.options()["program"]), Path(model.options()["weights"]))
    wholes = {samples: expected(model, x[:samples]) for samples in (1, 2, 5, 8)}
    for turn, blocks in enumerate(sets):
        task = patient(model, blocks, SPLITS[turn % len(SPLITS)])
        change(body, shadow, old, task)
        old = task
        runs = len(model.layers.runs(blocks))
        for samples, whole in wholes.items():
            answer, timings = body.ask(x[:samples])
            there = min(task.split[samples - 1], samples - 1)
            assert [(timing["outcome"], timing["samples"]) for timing in timings] == [("answered", there)] * (
                runs if there else 0
            )
            assert (answer - whole).abs().max() <= 1e-5 * whole.abs().max()
            assert torch.equal(answer, in_parts(loaded, model, task, x[:samples]))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("mode", ["shared", "private"])
def test_both_weight_modes(mode: str, models: Models, start: Start, expected: Expected) -> None:
    model = models("resnet18")
    body, _ = start(patient(model, [1, 2, 3, 4]), mode)
    x = images(model, 4)
    answer, timings = body.ask(x)
    assert [timing["outcome"] for timing in timings] == ["answered"]
    assert torch.equal(answer, expected(model, x))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_shadow_has_its_cpus(models: Models, nursery: Nursery) -> None:
    cpu = max(os.sched_getaffinity(0))
    shadow = nursery.empty()
    assert os.sched_getaffinity(shadow.pid) == os.sched_getaffinity(0)
    assert load(shadow, patient(models("resnet18"), [0, 1]), cpus=(cpu,))["say"] == "registered"
    assert os.sched_getaffinity(shadow.pid) == {cpu}
    shadow.end()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_blocks_change_under_load_and_no_batch_notices(models: Models, start: Start, expected: Expected) -> None:
    """Each order is sent while a batch is being computed."""
    model = models("resnet18")
    tasks = [patient(model, blocks) for blocks in ([0, 1], [2, 3, 4], [1, 5], [0, 1, 2, 3, 4, 5])]
    body, shadow = start(tasks[0])
    x = images(model, 4)
    whole = expected(model, x)
    for turn in range(12):
        old, new = tasks[turn % 4], tasks[(turn + 1) % 4]
        union, table = sorted({*old.blocks, *new.blocks}), list(new.split)
        for receiver, blocks in ((shadow, union), (body, list(new.blocks)), (shadow, list(new.blocks))):
            body.send(x)
            receiver.order("change", (), {"shadow": shadow.id, "blocks": blocks, "split": table, "expected_ms": new.expected_ms})
            answer, timings = body.result()
            assert torch.equal(answer, whole)
            assert {timing["outcome"] for timing in timings} == {"answered"}
            assert receiver.say("changed", "failed")["blocks"] == blocks
    assert shadow.skipped == body.skipped == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_shadow_runs_as_its_function_and_sees_only_its_files(models: Models, nursery: Nursery) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a process another user")
    model = models("resnet18")
    shadow = nursery.empty()
    readable = tuple(model.options().values())
    sandbox = Sandbox(uid=23456, readable=readable, hidden=(str(model.folder),), limits=Limits(processes=64))
    loaded = load(shadow, Task(model, [1, 2]), sandbox=sandbox)
    assert loaded["say"] == "registered"
    lines = Path(f"/proc/{shadow.pid}/status").read_text(encoding="utf-8").splitlines()
    status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    assert status["Uid"].split() == ["23456"] * 4
    assert int(status["CapEff"], 16) == 0
    assert status["NoNewPrivs"] == "1"
    visible = Path(f"/proc/{shadow.pid}/root{model.folder}").iterdir()
    assert sorted(entry.name for entry in visible) == sorted(Path(path).name for path in readable)
    shadow.end()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_loaded_shadow_says_what_it_holds(models: Models, nursery: Nursery) -> None:
    model = models("resnet18")
    shadow = nursery.empty()
    said = load(shadow, Task(model, [2, 5]))
    wanted = model.layers.parameter_bytes([2, 5])
    assert (said["shadow"], said["body"], said["blocks"], said["paired"]) == (shadow.id, "f-1", [2, 5], False)
    assert wanted <= said["resident_bytes"] <= wanted + 100_000
    assert said["load_ms"] > 0
    shadow.order("hello", epoch=2)
    again = shadow.say("registered")
    assert (again["epoch"], again["blocks"]) == (2, [2, 5])
    shadow.end()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_the_head_of_a_result_says_what_was_expected_and_what_was_measured(models: Models, start: Start) -> None:
    model = models("resnet18")
    body, shadow = start(Task(model, [0, 1], HALVES))
    body.order(
        "change", (), {"shadow": shadow.id, "blocks": [0, 1], "split": list(HALVES), "expected_ms": [[11.0, 22.0, 33.0, 44.0]]}
    )
    assert body.say("changed", "failed")["say"] == "changed"
    _, [timing] = body.ask(images(model, 4))
    assert timing["expected_ms"] == 22.0
    assert timing["operations"] == [model.layers.blocks[0].begin, model.layers.blocks[1].end]
    assert 0 < timing["shadow_ms"] < 5000
    assert json.dumps(timing)


def said(body: Child, x: Tensor) -> dict[str, Pair]:
    body.send(x)
    return shadows_of(body.frame())


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_every_answer_names_the_shadows_of_the_next_batch(nursery: Nursery, body: Child, task: Task, x: Tensor) -> None:
    assert said(body, x) == {}
    body.send(x[:1])
    assert set(body.frame().head_json()) == {"outputs"}, "what is said of nobody is nothing"
    shadow, wide = nursery.empty(), Pair(1, tuple(task.blocks), HALVES)
    assert load(shadow, task)["say"] == "registered"
    join(body, shadow, task)
    # Also with one sample, which is never split, and with a batch that the model does not take.
    for samples in (4, 1):
        assert said(body, x[:samples]) == {shadow.id: wide}
    assert said(body, x[:, :, :4]) == {shadow.id: wide}

    other = Task(task.model, [2, 3], (0, 0, 1, 1), [[500.0] * 8])
    change(body, shadow, task, other)
    assert said(body, x) == {shadow.id: Pair(1, (2, 3), (0, 0, 1, 1))}
    shadow.end()
    body.say("unpaired")
    assert said(body, x) == {}


NAME = "resnet18"


def promote(shadow: Child, model: Model, mode: str) -> None:
    """Ask for it, with a channel whose other end the child has from then on."""
    ours, theirs = socket.socketpair()
    launch = Launch("model", FUNCTION, shadow.id, max_batch=MAX_BATCH, options={**model.options(), "weight_mode": mode})
    order = packets.sealed_file("order", Order(launch, model.sandbox()).to_json().encode())
    with theirs:
        shadow.order("promote", [order, theirs.fileno()], {"shadow": shadow.id})
    os.close(order)
    shadow.channel.close()
    shadow.channel = ours


def pair(nursery: Nursery, model: Model, blocks: Sequence[int], mode: str) -> tuple[Child, Child]:
    body, shadow = nursery.body(model, weight_mode=mode), nursery.empty()
    # A Body that expects ten seconds waits for its Shadow on a busy machine too.
    task = Task(model, blocks, HALVES, [[10_000.0] * MAX_BATCH for _ in model.layers.runs(blocks)])
    assert load(shadow, task, mode=mode)["say"] == "registered"
    join(body, shadow, task)
    return body, shadow


@pytest.mark.parametrize("mode", ["shared", "private"])
def test_promoted_shadow_works_in_the_pair_until_it_serves(
    nursery: Nursery, models: Callable[[str], Model], expected: Callable[[Model, Tensor], Tensor], mode: str
) -> None:
    model = models(NAME)
    blocks = tuple(range(len(model.layers.blocks) // 2))
    body, shadow = pair(nursery, model, blocks, mode)
    x = torch.randn(4, 3, 48, 48, generator=torch.Generator().manual_seed(1))
    right = expected(model, x)
    promote(shadow, model, mode)
    answers = [body.ask(x) for _ in range(3)]
    said = shadow.say("complete", "failed")
    assert said["say"] == "complete", said
    assert said["resident_bytes"] >= model.layers.parameter_bytes()
    answers.append(body.ask(x))
    for rows, hand_overs in answers:
        assert torch.allclose(rows.view(right.shape), right, atol=1e-5)
        assert [hand_over["outcome"] for hand_over in hand_overs] == ["answered"]
    body.order("unpair", (), {"shadow": shadow.id})
    assert body.say("unpaired")["shadow"] == shadow.id
    shadow.order("serve", (), {"shadow": shadow.id})
    hello = shadow.frame().head_json()
    assert (hello["kind"], hello["weight_mode"], hello["pid"]) == ("model", mode, shadow.pid)
    shadow.input_name = model.signature.inputs[0].name
    shadow.order("hello", (), epoch=2)
    assert shadow.say("body")["pairs"] == []
    for child in (shadow, body):
        rows, hand_overs = child.ask(x)
        assert torch.allclose(rows.view(right.shape), right, atol=1e-5)
        assert hand_overs == []
    body.end()
    shadow.end()


def test_asked_again_by_another_coordinator_it_says_again_what_it_has(nursery: Nursery, models: Callable[[str], Model]) -> None:
    model = models(NAME)
    body, shadow = pair(nursery, model, (0,), "private")
    promote(shadow, model, "private")
    first = shadow.say("complete")
    promote(shadow, model, "private")
    assert shadow.say("complete") == first
    shadow.order("hello", (), epoch=5)
    again = shadow.say("registered")
    assert (again["blocks"], again["paired"]) == ([0], True)
    shadow.order("stop", (), epoch=5)
    nursery.gone(shadow.id)
    body.end()


def test_orders_that_make_no_sense_are_refused_and_the_pair_goes_on(nursery: Nursery, models: Callable[[str], Model]) -> None:
    model = models(NAME)
    body, shadow = pair(nursery, model, (0,), "shared")
    shadow.order("serve", (), {"shadow": shadow.id})
    assert "does not hold the whole model" in shadow.say("failed")["reason"]
    shadow.order("promote", (), {"shadow": shadow.id})
    assert "0 descriptors" in shadow.say("failed")["reason"]
    promote(shadow, model, "shared")
    shadow.say("complete")
    shadow.order("change", (), {"blocks": [0, 1], "split": list(HALVES)})
    assert "being promoted to a Body" in shadow.say("failed")["reason"]
    x = torch.randn(2, 3, 48, 48)
    assert [row["outcome"] for row in body.ask(x)[1]] == ["answered"]
    # Its Body ends: it waits for what comes, and serves when it is told to.
    body.end()
    shadow.say("unpaired")
    shadow.order("serve", (), {"shadow": shadow.id})
    assert shadow.frame().head_json()["kind"] == "model"
    shadow.channel.close()
    assert nursery.gone(shadow.id)["status"] == 0


def test_an_empty_container_cannot_be_promoted(nursery: Nursery, models: Callable[[str], Model]) -> None:
    shadow = nursery.empty()
    promote(shadow, models(NAME), "shared")
    assert "loaded no blocks" in shadow.say("failed")["reason"]
    assert nursery.gone(shadow.id)["status"] != 0
