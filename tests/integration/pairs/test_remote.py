"""A Body paired with a Shadow on another node: the Shadow's image on a port, its Body's coordinator saying where."""

import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gnomon_core.pairs import ELSEWHERE, Pair, shadows_of
from gnomon_profiler.repository import DirectoryRepository
from tests.integration.pairs.conftest import HALVES
from tests.pair_harness import Child, Model, Nursery, Pod, ServedShadow, Task, order_remote

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")]
HELD = (1, 2, 3, 4)


@dataclass(frozen=True)
class Stored:
    """A captured network in a repository, and what it answers by itself."""

    model: Model
    pod: Pod
    task: Task
    x: Tensor
    whole: Tensor


@pytest.fixture(scope="module")
def stored(
    models: Callable[[str], Model], expected: Callable[[Model, Tensor], Tensor], tmp_path_factory: pytest.TempPathFactory
) -> Stored:
    model = models("resnet18")
    root = tmp_path_factory.mktemp("repository")
    DirectoryRepository(root).put("resnet18", "1", {file.name: file.read_bytes() for file in model.folder.iterdir()})
    x = torch.randn(4, *model.signature.inputs[0].shape, generator=torch.Generator().manual_seed(0))
    # The Shadow may take a second: this machine may be busy with other things.
    task = Task(model, HELD, HALVES, [[500.0] * 8])
    return Stored(model, Pod(root, "resnet18@1", HELD), task, x, expected(model, x))


@pytest.fixture(scope="module")
def served(stored: Stored, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedShadow]:
    made = ServedShadow(tmp_path_factory.mktemp("shadow"), stored.pod)
    yield made
    made.end()


@pytest.fixture
def body(nursery: Nursery, stored: Stored) -> Iterator[Child]:
    made = nursery.body(stored.model)
    yield made
    made.end()


def paired(body: Child, task: Task, shadow: ServedShadow) -> None:
    order_remote(body, "s-1", task, shadow.url)
    body.expect("paired")


def near(answer: Tensor, whole: Tensor) -> bool:
    """Kernels may sum in another order in batches of another size: then the last bits differ, split or not."""
    return float((answer - whole).abs().max() / whole.abs().max()) <= 1e-5


def outcomes(body: Child, stored: Stored) -> list[str]:
    answer, timings = body.ask(stored.x)
    assert near(answer, stored.whole)
    return [timing["outcome"] for timing in timings]


def test_answers_are_those_of_the_whole_model(
    body: Child, stored: Stored, served: ServedShadow, expected: Callable[[Model, Tensor], Tensor]
) -> None:
    paired(body, stored.task, served)
    for size in (2, 3, 8):
        x = torch.randn(size, *stored.model.signature.inputs[0].shape, generator=torch.Generator().manual_seed(size))
        answer, [timing] = body.ask(x)
        assert near(answer, expected(stored.model, x))
        assert (timing["outcome"], timing["samples"]) == ("answered", HALVES[size - 1])
    assert torch.equal(body.ask(stored.x)[0], stored.whole)
    body.send(stored.x)
    assert shadows_of(body.frame()) == {"s-1": Pair(1, HELD, HALVES, ELSEWHERE)}, "whoever makes its batches prices the way"
    body.order("unpair", (), {"shadow": "s-1"})
    assert body.say("unpaired")["reason"] == "told to"
    assert outcomes(body, stored) == []


def test_blocks_and_split_change_between_batches(body: Child, stored: Stored, served: ServedShadow) -> None:
    paired(body, stored.task, served)
    outcomes(body, stored)
    for blocks, split, runs in (([1, 3], HALVES, 2), ([2], (0, 1, 2, 3), 1), ([1, 2, 3, 4], HALVES, 1)):
        body.order("change", (), {"shadow": "s-1", "blocks": blocks, "split": list(split), "expected_ms": [[500.0] * 8] * runs})
        body.expect("changed")
        assert outcomes(body, stored) == ["answered"] * runs
    body.order("change", (), {"shadow": "s-1", "blocks": [0], "split": list(HALVES), "expected_ms": [[500.0] * 8]})
    body.expect("changed")
    assert outcomes(body, stored) == ["refused"]


@pytest.mark.parametrize(
    "wrong", [("", "a-guess", "401"), ("http://127.0.0.1:1", "x", "cannot be reached")], ids=["token", "url"]
)
def test_a_shadow_that_cannot_be_had_is_said_and_the_body_serves_on(
    body: Child, stored: Stored, served: ServedShadow, wrong: tuple[str, str, str]
) -> None:
    url, token, reason = wrong
    order_remote(body, "s-1", stored.task, url or served.url, token)
    assert reason in body.say("unpaired")["reason"]
    assert outcomes(body, stored) == []
    paired(body, stored.task, served)
    assert outcomes(body, stored) == ["answered"]


@pytest.mark.parametrize("url", ["", "https://x", "unix:/x", "http://x:y"])
def test_an_order_without_a_url_is_refused(body: Child, stored: Stored, url: str) -> None:
    order_remote(body, "s-1", stored.task, url)
    assert body.say("paired", "unpaired", "failed")["say"] == "failed"
    assert outcomes(body, stored) == []


def test_a_shadow_serves_the_body_that_came_last(nursery: Nursery, body: Child, stored: Stored, served: ServedShadow) -> None:
    paired(body, stored.task, served)
    outcomes(body, stored)
    other = nursery.body(stored.model)
    paired(other, stored.task, served)
    assert outcomes(other, stored) == ["answered"]
    assert body.say("unpaired")["reason"] == "the Shadow has gone"
    assert outcomes(body, stored) == []
    other.end()


@pytest.fixture
def mortal(stored: Stored, tmp_path: Path) -> Iterator[ServedShadow]:
    """A Shadow of this test alone."""
    made = ServedShadow(tmp_path, stored.pod)
    yield made
    made.end()


def test_a_shadow_that_drains_leaves_at_once_and_loses_nothing(body: Child, stored: Stored, mortal: ServedShadow) -> None:
    paired(body, stored.task, mortal)
    assert outcomes(body, stored) == ["answered"]
    body.send(stored.x)
    assert mortal.end() == 0
    assert torch.equal(body.result()[0], stored.whole)
    assert body.say("unpaired")["reason"] == "the Shadow has gone"
    assert outcomes(body, stored) == []


def test_shadows_killed_while_they_compute(body: Child, stored: Stored, tmp_path: Path) -> None:
    for delay_s in (0.0, 0.01):
        shadow = ServedShadow(tmp_path, stored.pod)
        paired(body, stored.task, shadow)
        body.ask(stored.x)
        body.send(stored.x)
        time.sleep(delay_s)
        shadow.kill()
        assert torch.equal(body.result()[0], stored.whole)
        assert body.say("unpaired")["reason"].startswith(("the Shadow has gone", "the connection has broken"))
        assert outcomes(body, stored) == []


def test_a_frozen_shadow_ends_the_pair_and_one_that_froze_for_a_moment_does_not(
    body: Child, stored: Stored, mortal: ServedShadow
) -> None:
    paired(body, stored.task, mortal)
    body.ask(stored.x)
    mortal.signal(signal.SIGSTOP)
    assert outcomes(body, stored) == ["late"]
    mortal.signal(signal.SIGCONT)
    # What it computes on waking belongs to no batch.
    assert [outcomes(body, stored)[0] for _ in range(6)][-3:] == ["answered"] * 3
    mortal.signal(signal.SIGSTOP)
    assert [outcomes(body, stored) for _ in range(3)] == [["late"]] * 3
    assert body.say("unpaired")["reason"].startswith("3 misses in a row")
    assert outcomes(body, stored) == []
    mortal.signal(signal.SIGCONT)


def test_a_batch_in_a_hurry_is_answered_and_nobody_blamed(body: Child, stored: Stored, mortal: ServedShadow) -> None:
    paired(body, replace(stored.task, expected_ms=[[60_000.0] * 8]), mortal)
    body.ask(stored.x)
    mortal.signal(signal.SIGSTOP)
    for _ in range(4):
        answer, [timing] = body.ask(stored.x, budget_s=0.2)
        assert torch.equal(answer, stored.whole)
        assert timing["outcome"] == "hurried"
    mortal.signal(signal.SIGCONT)


def test_twenty_pairs_leave_nothing(body: Child, stored: Stored, served: ServedShadow) -> None:
    def held() -> tuple[int, int]:
        return len(body.descriptors()), len(list(Path(f"/proc/{body.pid}/task").iterdir()))

    found = []
    for _ in range(20):
        paired(body, stored.task, served)
        assert outcomes(body, stored) == ["answered"]
        body.order("unpair", (), {"shadow": "s-1"})
        body.say("unpaired")
        time.sleep(0.02)
        found.append(held())
    assert found[-1] <= found[2]


# Two nodes


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@pytest.fixture
def far_node() -> Iterator[str]:
    """A network namespace behind a virtual cable, with a delay where the kernel can make one. Its name; it has 10.213.7.2."""
    try:
        ip("netns", "add", "gnomon-far")
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no network namespaces here: {error}")
    try:
        ip("link", "add", "gnomon-near0", "type", "veth", "peer", "name", "gnomon-far0", "netns", "gnomon-far")
        ip("addr", "add", "10.213.7.1/30", "dev", "gnomon-near0")
        ip("link", "set", "gnomon-near0", "up")
        for arguments in (("addr", "add", "10.213.7.2/30", "dev", "gnomon-far0"), ("link", "set", "gnomon-far0", "up")):
            ip("-n", "gnomon-far", *arguments)
        # A kernel without netem still has the two nodes.
        subprocess.run(
            ["tc", "qdisc", "add", "dev", "gnomon-near0", "root", "netem", "delay", "1ms"], check=False, capture_output=True
        )
        yield "gnomon-far"
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no virtual cables here: {error}")
    finally:
        subprocess.run(["ip", "netns", "del", "gnomon-far"], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", "gnomon-near0"], check=False, capture_output=True)


def test_a_shadow_on_another_node(body: Child, stored: Stored, far_node: str, tmp_path: Path) -> None:
    """The cable is cut in the middle: nobody says goodbye, and the answers stay right."""
    shadow = _reached(far_node, stored, tmp_path)
    paired(body, stored.task, shadow)
    assert [outcomes(body, stored) for _ in range(3)] == [["answered"]] * 3
    ip("link", "set", "gnomon-near0", "down")
    # What the kernel no longer takes is full, and no less a miss.
    assert {outcome for _ in range(3) for outcome in outcomes(body, stored)} <= {"late", "full"}
    assert body.say("unpaired")["reason"].startswith("3 misses in a row")
    assert outcomes(body, stored) == []
    shadow.end()


def _reached(namespace: str, stored: Stored, folder: Path) -> ServedShadow:
    return ServedShadow(folder, replace(stored.pod, host="10.213.7.2", namespace=namespace))
