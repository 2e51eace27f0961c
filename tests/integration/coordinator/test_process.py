"""The coordinator's process: hand-over, restarts, zombies, what it leaves behind, and noise on its sockets.

The long form of the noise is `python -m tests.integration.coordinator.hostile 100000`."""

import fcntl
import mmap
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gnomon_core import packets
from tests.integration.coordinator.hostile import attack
from tests.integration.coordinator.node import (
    Coordinator,
    End,
    Instance,
    LaunchFds,
    close,
    eventually,
    layers_file,
    shadow_request,
)


@pytest.fixture
def layers(tmp_path: Path) -> Path:
    return layers_file(tmp_path)


@pytest.fixture
def begin() -> Iterator[Callable[..., Coordinator]]:
    begun: list[Coordinator] = []

    def begin(
        epoch: int = 1, *instances: tuple[Instance, str], platform: End | None = None, complete: bool = True
    ) -> Coordinator:
        begun.append(Coordinator(epoch, instances, platform, complete=complete))
        return begun[-1]

    yield begin
    for coordinator in begun:
        coordinator.stop()


@pytest.fixture
def make() -> Iterator[Callable[[str], Instance]]:
    made: list[Instance] = []

    def make(name: str) -> Instance:
        made.append(Instance(name))
        return made[-1]

    yield make
    for instance in made:
        instance.close()


@pytest.fixture
def launch_fds() -> Iterator[LaunchFds]:
    held = LaunchFds()
    yield held
    held.close()


Begin = Callable[..., Coordinator]
Make = Callable[[str], Instance]


def paired(
    coordinator: Coordinator, body: Instance, shadow: Instance, layers: Path, launch_fds: LaunchFds
) -> tuple[list[int], list[int]]:
    """Let a Body and a container of these names become a pair; the descriptors that the Body and the Shadow got."""
    coordinator.hand_over(body, "body")
    body.hear("hello")
    body.say("body", pairs=[])
    coordinator.fill_pool(shadow)
    coordinator.platform.send(shadow_request(layers, "s1", body.name), launch_fds.descriptors)
    _, order_and_log = shadow.hear("load")
    close(order_and_log)
    shadow.say("registered", shadow="s1", body=body.name, blocks=[1, 2], resident_bytes=1, load_ms=1.0, paired=False)
    _, for_shadow = shadow.hear("join")
    _, for_body = body.hear("pair")
    shadow.say("paired", shadow="s1")
    body.say("paired", shadow="s1")
    coordinator.platform.expect("event", "paired")
    return for_body, for_shadow


def test_a_shadow_is_made_of_a_container_and_paired(begin: Begin, make: Make, layers: Path, launch_fds: LaunchFds) -> None:
    coordinator, body, container = begin(), make("b1"), make("pool-0-1")
    before = coordinator.descriptors()
    for_body, for_shadow = paired(coordinator, body, container, layers, launch_fds)
    assigned, _ = coordinator.supervisor.expect("do", "assign")
    assert (assigned["id"], assigned["as"]) == ("pool-1-1", "s1")
    assert coordinator.table() == {"b1": ["body", ["s1"], [1, 2], "paired"], "s1": ["shadow", ["b1"], [1, 2], "paired"]}
    # It keeps the two instances' sockets and nothing of the pair's memory.
    assert coordinator.descriptors() == before + 2
    assert not shared_memory_of(coordinator.process.pid)
    close(for_body + for_shadow)


def shared_memory_of(pid: int) -> list[str]:
    """Memfds that a process has open or mapped."""
    links = [str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()]
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return [text for text in links + maps if "memfd:" in text]


def test_a_platform_that_stops_is_nothing_to_complain_of(begin: Begin, make: Make, capfd: pytest.CaptureFixture[str]) -> None:
    coordinator = begin()
    coordinator.platform.close()
    # What it does in one turn it has done when it answers in the next.
    for name in ("b1", "b2"):
        body = make(name)
        coordinator.hand_over(body, "body")
        body.hear("hello")
    assert capfd.readouterr().err == ""


def test_each_buffer_has_one_writer_and_a_sealed_size(begin: Begin, make: Make, layers: Path, launch_fds: LaunchFds) -> None:
    for_body, for_shadow = paired(begin(), make("b1"), make("pool-0-1"), layers, launch_fds)
    (body_data, body_there, body_back), (shadow_data, shadow_there, shadow_back) = for_body, for_shadow
    for writes, reads in ((body_there, shadow_there), (shadow_back, body_back)):
        with mmap.mmap(writes, 0) as mine, mmap.mmap(reads, 0, prot=mmap.PROT_READ) as theirs:
            mine[:5] = b"hello"
            assert theirs[:5] == b"hello"
        with pytest.raises(PermissionError):
            mmap.mmap(reads, 0)
        with pytest.raises(OSError, match=r"Permission|not permitted|Bad file"):
            os.pwrite(reads, b"x", 0)
        for descriptor in (writes, reads):
            for size in (0, 1 << 20):
                with pytest.raises(OSError, match=r"not permitted|Invalid"):
                    os.ftruncate(descriptor, size)
            with pytest.raises(PermissionError):
                fcntl.fcntl(writes, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    os.write(body_data, b"x")
    assert os.read(shadow_data, 10) == b"x"
    close(for_body + for_shadow)


def test_without_a_container_the_supervisor_is_asked_for_one(
    begin: Begin, make: Make, layers: Path, launch_fds: LaunchFds
) -> None:
    coordinator, body = begin(), make("b1")
    coordinator.hand_over(body, "body")
    coordinator.platform.send({"do": "pool", "size": 0, "zygote": "torch"})
    coordinator.ping()
    coordinator.platform.send(shadow_request(layers), launch_fds.descriptors)
    fork, descriptors = coordinator.supervisor.expect("do", "fork")
    assert fork["zygote"] == "torch"
    assert b'"kind\\": \\"empty\\"' in packets.read_file(descriptors[0])
    close(descriptors)
    container = make(fork["id"])
    coordinator.hand_over(container, "empty")
    message, descriptors = container.hear("load")
    assert (message["shadow"], message["blocks"]) == ("s1", [1, 2])
    close(descriptors)


def test_a_pool_that_nobody_can_fill_is_asked_for_ever_more_rarely(
    begin: Begin, layers: Path, launch_fds: LaunchFds, make: Make
) -> None:
    coordinator, body = begin(), make("b1")
    coordinator.hand_over(body, "body")
    coordinator.platform.send({"do": "pool", "size": 1, "zygote": "nowhere"})
    for _ in range(3):
        fork, descriptors = coordinator.supervisor.expect("do", "fork")
        close(descriptors)
        coordinator.gone(fork["id"])
    coordinator.platform.send(shadow_request(layers), launch_fds.descriptors)
    for _ in range(3):
        fork, descriptors = coordinator.supervisor.expect("do", "fork")
        close(descriptors)
        coordinator.gone(fork["id"])
    # Forks for the Shadow and for the pool may have come in any order; three of its own are the Shadow's.
    while True:
        coordinator.platform.take()
        if any(message.get("event") == "failed" for message, _ in coordinator.platform.waiting):
            break
        fork, descriptors = coordinator.supervisor.expect("do", "fork")
        close(descriptors)
        coordinator.gone(fork["id"])
    assert "s1" not in coordinator.table()


def test_the_next_coordinator_finds_the_pair_and_leaves_it_alone(
    begin: Begin, make: Make, layers: Path, launch_fds: LaunchFds
) -> None:
    first, body, shadow = begin(1), make("b1"), make("pool-0-1")
    for_body, for_shadow = paired(first, body, shadow, layers, launch_fds)
    first.signal(signal.SIGKILL)
    first.process.wait()
    shadow.name = "s1"
    second = begin(2, (body, "body"), (shadow, "shadow"))
    for instance in (body, shadow):
        message, _ = instance.hear("hello")
        assert message["epoch"] == 2
    second.platform.send(shadow_request(layers))
    body.say("body", pairs=[{"shadow": "s1", "blocks": [1, 2], "split": [0, 1]}])
    shadow.say("registered", shadow="s1", body="b1", blocks=[1, 2], resident_bytes=1, load_ms=1.0, paired=True)
    event, _ = second.platform.expect("event", "paired")
    assert event["body"] == "b1"
    assert second.table()["b1"] == ["body", ["s1"], [1, 2], "paired"]
    for instance in (body, shadow):
        instance.take()
        assert instance.waiting == []
    # The same data socket still joins them.
    os.write(for_body[0], b"still")
    assert os.read(for_shadow[0], 10) == b"still"
    close(for_body + for_shadow)


def test_a_zombie_that_goes_on_is_refused(begin: Begin, make: Make, layers: Path, launch_fds: LaunchFds) -> None:
    """The worst case: nobody has ended it, and it has an order to give before it hears that it was replaced."""
    zombie, body, container = begin(1), make("b1"), make("pool-0-1")
    zombie.hand_over(body, "body")
    body.hear("hello")
    body.say("body", pairs=[])
    zombie.fill_pool(container)
    zombie.signal(signal.SIGSTOP)
    zombie.platform.send(shadow_request(layers), launch_fds.descriptors)
    second = begin(2, (body, "body"), (container, "empty"))
    second.platform.send({"do": "pool", "size": 1, "zygote": "torch"})
    for instance in (body, container):
        instance.hear("hello")
    zombie.signal(signal.SIGCONT)
    message, descriptors = container.hear("load")
    assert message["epoch"] == 1
    assert container.epoch == 2, "it knows better"
    close(descriptors)
    # What the instance answers is what any does; whichever of the two reads it, neither makes a Shadow of it.
    container.send({"say": "stale", "epoch": 2})
    container.say("empty", pid=1)
    body.say("body", pairs=[])
    zombie.supervisor.close()
    assert zombie.process.wait(5) == 0
    container.say("empty", pid=1)
    body.say("body", pairs=[])
    eventually(lambda: second.table() == {"b1": ["body", [], [], "ready"], container.name: ["empty", [], [], "ready"]})


def test_coordinator_ends_with_its_supervisor(begin: Begin, make: Make, layers: Path, launch_fds: LaunchFds) -> None:
    coordinator = begin()
    paired(coordinator, make("b1"), make("pool-0-1"), layers, launch_fds)
    coordinator.supervisor.close()
    assert coordinator.process.wait(5) == 0


def test_coordinator_without_its_platform_goes_on(begin: Begin, make: Make, layers: Path, launch_fds: LaunchFds) -> None:
    coordinator, body = begin(), make("b1")
    coordinator.platform.close()
    coordinator.hand_over(body, "body")
    body.hear("hello")
    assert coordinator.process.poll() is None
    del layers, launch_fds


def test_a_layers_file_that_is_none_fails_the_wish_and_nothing_else(
    begin: Begin, make: Make, tmp_path: Path, launch_fds: LaunchFds
) -> None:
    coordinator, body = begin(), make("b1")
    coordinator.hand_over(body, "body")
    broken = tmp_path / "broken.json"
    for content in ("", "[]", '{"format": "x"}', "[" * 5000):
        broken.write_text(content)
        coordinator.platform.send(shadow_request(broken), launch_fds.descriptors)
        event, _ = coordinator.platform.expect("event", "failed")
        assert "layers cannot be read" in event["reason"]
    coordinator.platform.send(shadow_request(tmp_path / "nowhere"), launch_fds.descriptors)
    coordinator.platform.expect("event", "failed")
    before = coordinator.descriptors()
    coordinator.platform.send(shadow_request(broken), launch_fds.descriptors)
    coordinator.ping()
    assert coordinator.descriptors() == before


def test_the_next_coordinator_of_many_instances_hears_none_before_all_are_there(begin: Begin, make: Make, layers: Path) -> None:
    """The supervisor hands over some instances at a time: a Body's words name a Shadow that comes with the last ones."""
    body, shadow, others = make("b1"), make("s1"), [make(f"b{number}") for number in range(2, 101)]
    # The quickest of answers is there before it is read.
    body.epoch = 2
    body.say("body", pairs=[{"shadow": "s1", "blocks": [1, 2], "split": [0, 1]}])
    second = begin(2, (body, "body"), *((other, "body") for other in others), (shadow, "shadow"))
    second.platform.send(shadow_request(layers))
    shadow.hear("hello")
    shadow.say("registered", shadow="s1", body="b1", blocks=[1, 2], resident_bytes=1, load_ms=1.0, paired=True)
    second.platform.expect("event", "paired")
    second.ping()
    body.take()
    assert [message["do"] for message, _ in body.waiting] == ["hello"]


def test_coordinator_waiting_for_an_instance_ends_with_its_supervisor(begin: Begin, make: Make) -> None:
    body = make("b1")
    coordinator = begin(1, (body, "body"), complete=False)
    body.hear("hello")
    body.say("body", pairs=[{"shadow": "s7", "blocks": [1], "split": [0, 1]}])
    coordinator.platform.send({"do": "ping", "number": 1})
    eventually(lambda: asleep(coordinator.process.pid))
    body.take()
    coordinator.platform.take()
    assert (body.waiting, coordinator.platform.waiting) == ([], [])
    coordinator.supervisor.close()
    assert coordinator.process.wait(5) == 0


def asleep(pid: int) -> bool:
    """True if it waits for something: one that looks again and again never does."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


@pytest.mark.parametrize("seed", [1, 2])
def test_noise_from_instances_harms_nobody(seed: int) -> None:
    outcome = attack(1500, seed)
    assert outcome.worst_s < 10.0  # it answers; how soon is the machine's affair
    assert outcome.descriptors <= 4
