"""What instances may say, and what ends the conversation."""

import json
import math
from typing import Any

import pytest

from gnomon_coordinator.protocol import BadMessageError, PairReport, read_change, read_instance_message, read_task

REGISTERED = {
    "say": "registered",
    "epoch": 3,
    "shadow": "s1",
    "body": "b1",
    "blocks": [1, 2],
    "resident_bytes": 9,
    "load_ms": 1.5,
}
PAIR = {"shadow": "s", "blocks": [3], "split": [0, 1]}
TASK = {
    "shadow": "s1",
    "body": "b1",
    "program": "/p",
    "weights": "/w",
    "layers": "/l",
    "weight_mode": "shared",
    "cores": 2,
    "cpus": [0, 1],
    "blocks": [0, 1],
    "split": [0, 1, 1],
    "max_batch": 3,
    "expected_ms": [[1, 2.5]],
    "join": ["/sys/fs/cgroup/x/cgroup.procs"],
}


def test_messages_of_an_instance_are_read() -> None:
    said = read_instance_message({**REGISTERED, "phases_ms": [1, 2]})
    assert (said.say, said.epoch, said.shadow, said.blocks, said.paired) == ("registered", 3, "s1", (1, 2), False)
    assert read_instance_message({"say": "empty", "epoch": 1, "pid": 5}).say == "empty"
    assert read_instance_message({"say": "body", "epoch": 1, "pairs": []}).pairs == ()
    paired = read_instance_message({"say": "body", "epoch": 1, "pairs": [PAIR, {**PAIR, "shadow": "t"}]})
    assert paired.pairs == (PairReport("s", (3,), (0, 1)), PairReport("t", (3,), (0, 1)))
    assert read_instance_message({"say": "failed", "epoch": 1, "shadow": "", "reason": "no pair"}).shadow is None


def test_logged_text_is_one_line() -> None:
    said = read_instance_message({"say": "unpaired", "epoch": 1, "shadow": "s", "reason": "a\nb\x1b[2J\ud800" + "c" * 10_000})
    assert said.reason.startswith("a b [2J c")
    assert len(said.reason) == 300


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"say": 3},
        {"say": ["registered"]},
        {"say": "shutdown"},
        {**REGISTERED, "epoch": -1},
        {**REGISTERED, "epoch": True},
        {**REGISTERED, "epoch": 1 << 70},
        {**REGISTERED, "epoch": "3"},
        {**REGISTERED, "shadow": "../../etc"},
        {**REGISTERED, "shadow": "x" * 400},
        {**REGISTERED, "shadow": None},
        {**REGISTERED, "blocks": [2, 1]},
        {**REGISTERED, "blocks": [1, 1]},
        {**REGISTERED, "blocks": [-1]},
        {**REGISTERED, "blocks": [1.0]},
        {**REGISTERED, "blocks": [True]},
        {**REGISTERED, "blocks": list(range(5000))},
        {**REGISTERED, "blocks": {"0": 1}},
        {**REGISTERED, "load_ms": math.nan},
        {**REGISTERED, "load_ms": math.inf},
        {**REGISTERED, "load_ms": -1},
        {**REGISTERED, "load_ms": 10**400},
        {**REGISTERED, "paired": 1},
        {"say": "body", "epoch": 1, "pairs": "s"},
        {"say": "body", "epoch": 1, "pairs": ["s"]},
        {"say": "body", "epoch": 1, "pairs": [{**PAIR, "split": [1]}]},
        {"say": "body", "epoch": 1, "pairs": [{**PAIR, "shadow": None}]},
        {"say": "body", "epoch": 1, "pairs": [PAIR, PAIR]},
        {"say": "body", "epoch": 1, "pairs": [{**PAIR, "shadow": f"s{number}"} for number in range(9)]},
        {"say": "changed", "epoch": 1, "shadow": "/", "blocks": []},
        {"say": "unpaired", "epoch": 1, "shadow": "s", "reason": 5},
    ],
)
def test_oversized_message_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadMessageError):
        read_instance_message(wrong)


def test_an_instance_sends_no_descriptors() -> None:
    with pytest.raises(BadMessageError, match="descriptors"):
        read_instance_message(REGISTERED, 1)


def test_deep_nesting_costs_nothing() -> None:
    deep = json.loads("[" * 900 + "]" * 900)
    for field in ("say", "epoch", "shadow", "blocks", "load_ms"):
        with pytest.raises(BadMessageError):
            read_instance_message({**REGISTERED, field: deep})


def test_a_task_is_read_whole() -> None:
    task = read_task(TASK)
    assert (task.cores, task.cpus, task.split, task.expected_ms, task.max_batch) == (2, (0, 1), (0, 1, 1), ((1.0, 2.5),), 3)
    changed = read_change({**TASK, "blocks": [1], "cores": 1}).applied_to(task)
    assert (changed.blocks, changed.cores, changed.shadow, changed.max_batch) == ((1,), 1, "s1", 3)


@pytest.mark.parametrize(
    "wrong",
    [
        {"program": "relative"},
        {"program": "/nul\0"},
        {"weight_mode": "borrowed"},
        {"cores": 0},
        {"split": [0, 2]},
        {"max_batch": 5000},
        {"expected_ms": [1]},
        {"expected_ms": [["1"]]},
        {"join": "x"},
    ],
)
def test_a_task_with_something_wrong_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadMessageError):
        read_task({**TASK, **wrong})
