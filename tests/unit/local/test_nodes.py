"""A machine's cores and memory, and what control groups leave of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnomon_autoscaler.policies.asyfunc.lls import shadow_memory_bytes
from gnomon_autoscaler.policies.asyfunc.options import Options
from gnomon_autoscaler.policies.asyfunc.pairing import Knowledge
from gnomon_core import packets
from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Node
from gnomon_core.functions import FunctionSpec, read_deployment
from gnomon_core.settings import Settings
from gnomon_platforms.common import MODEL_OVERHEAD_BYTES, claimed_cores, shadow_bytes
from gnomon_platforms.local.nodes import OWN_MEMORY_BYTES, LocalNode, available_memory_bytes, memory_for_instances, quota_cores
from gnomon_simulator.profiles import modelled
from tests.made_up_models import BlockPlan, made_up_profile
from tests.refusals import refused

GIB = 2**30


def spec(**fields: object) -> FunctionSpec:
    return read_deployment({"service": "f", "image": "i", **fields})


@pytest.mark.parametrize(
    ("fields", "cores", "claimed"),
    [
        ({}, 1, 0.1),
        ({"limits": {"cpu": "100m"}}, 1, 0.1),
        ({"limits": {"cpu": "2"}}, 1, 2.0),
        ({"limits": {"cpu": "2"}, "requests": {"cpu": "250m"}}, 1, 0.25),
        ({"annotations": {"gnomon/model": "m"}}, 3, 3.0),
        ({"annotations": {"gnomon/cores": "2"}}, 2, 2.0),
        ({"annotations": {"gnomon/model": "m"}, "requests": {"cpu": "500m"}}, 4, 0.5),
    ],
)
def test_reservation_of_an_instance(fields: dict[str, object], cores: int, claimed: float) -> None:
    assert claimed_cores(spec(**fields), cores) == claimed


def test_instances_get_exclusive_cpus_while_there_are_any_and_then_share_all() -> None:
    node = LocalNode((0, 1, 2, 3), 4, GIB)
    assert node.allocate("a", 2.0, 0, 2).cpus == (0, 1)
    assert node.allocate("b", 1.0, 0, 1).cpus == (2,)
    assert node.allocate("c", 0.5, 0, 1).cpus == (3,)
    assert node.allocate("d", 0.1, 0, 1).cpus == (0, 1, 2, 3), "on one CPU it would wait for that CPU's owner while others idle"
    node.release("a")
    assert node.allocate("e", 1.0, 0, 1).cpus == (0,)


def test_fractions_of_a_core_share_it_until_it_is_full() -> None:
    node = LocalNode((0,), 1, GIB)
    for number in range(10):
        node.allocate(str(number), 0.1, 0, 1)
    assert node.value().free_cores == 0
    with refused(503, "no_capacity"):
        node.allocate("one too many", 0.1, 0, 1)


def test_memory_is_given_once() -> None:
    node = LocalNode((0,), 1, GIB)
    node.allocate("a", 0.1, 700 * 2**20, 1)
    with pytest.raises(GnomonError, match=r"0\.1 cores and 400 MiB; node .* has 0\.9 cores and 324 MiB free"):
        node.allocate("b", 0.1, 400 * 2**20, 1)
    node.release("a")
    node.allocate("b", 0.1, 400 * 2**20, 1)


def test_changed_claim_returns_its_cores_and_refused_change_keeps_them() -> None:
    node = LocalNode((0, 1, 2, 3), 4, GIB)
    node.allocate("a", 3.0, 0, 3)
    assert node.allocate("a", 4.0, 0, 4).cpus == (0, 1, 2, 3)
    with pytest.raises(GnomonError):
        node.allocate("a", 5.0, 0, 5)
    assert node.allocation("a").cores == 4.0


def test_a_node_that_gives_away_more_than_it_has_lets_the_kernel_share_its_cpus() -> None:
    node = LocalNode((0, 1), 8, GIB)
    cpus = [node.allocate(str(number), 1.0, 0, 1).cpus for number in range(8)]
    assert cpus == [(0,), (1,)] + [(0, 1)] * 6


def test_idle_instances_reserve_no_cores_unless_their_deployment_asks_for_them() -> None:
    busy = {"asks"}
    node = LocalNode((0, 1), 2, GIB, in_use=busy.__contains__)
    busy.add("a")
    node.allocate("a", 1.0, 0, 1, held_while_idle=False)
    node.allocate("asks", 0.5, 0, 1)
    assert node.value().free_cores == 0.5
    busy.clear()
    assert node.value().free_cores == 1.5


def test_busy_machine_starts_the_first_instance_of_each_function_and_no_second() -> None:
    busy: set[str] = set()
    node = LocalNode((0, 1), 2, GIB, in_use=busy.__contains__)
    for number in range(10):
        busy.add(f"model-{number}")
        node.allocate(f"model-{number}", 1.0, 2**20, 1, held_while_idle=False, first=True)
    assert node.value().free_cores == 0
    with pytest.raises(GnomonError, match="needs 1 core"):
        node.allocate("second", 1.0, 2**20, 1, held_while_idle=False)
    with pytest.raises(GnomonError, match="needs 1 core"):
        node.allocate("asks for its core", 1.0, 2**20, 1, first=True)
    with pytest.raises(GnomonError, match="needs 3 cores"):
        node.allocate("larger than the machine", 3.0, 2**20, 3, held_while_idle=False, first=True)
    with pytest.raises(GnomonError, match="MiB"):
        node.allocate("larger than what is left", 1.0, GIB, 1, held_while_idle=False, first=True)
    busy -= {f"model-{number}" for number in range(9)}
    node.allocate("second", 1.0, 2**20, 1, held_while_idle=False)


@given(st.lists(st.tuples(st.integers(1, 3), st.booleans(), st.booleans(), st.booleans()), max_size=20))
def test_only_first_instances_may_exceed_the_machines_cores(
    asked: list[tuple[int, bool, bool, bool]],
) -> None:
    """Instances that were let in for free cores fit into the machine, in use or not."""
    busy: set[str] = set()
    node = LocalNode((0, 1, 2, 3), 4, GIB, in_use=busy.__contains__)
    fitted = 0.0
    for number, (cores, held, first, works) in enumerate(asked):
        name = str(number)
        before = node.unallocated_cores
        busy |= {name} if works else set()
        try:
            node.allocate(name, float(cores), 0, cores, held_while_idle=held, first=first)
        except GnomonError:
            assert cores > (4 if first and not held else before)
            assert node.unallocated_cores == before
            continue
        counts = cores if held or works else 0
        assert node.unallocated_cores == before - counts
        fitted += 0 if first and not held else counts
        assert fitted <= 4


def node() -> LocalNode:
    return LocalNode(tuple(range(8)), 8, GIB, reserved_cores=1.0)


def test_the_reserve_is_not_free_and_policies_are_told_of_it() -> None:
    held = node()
    assert (held.value().cores, held.value().free_cores, held.value().reserve_cores) == (8, 7, 1)
    held.allocate("a", 6.0, 0, 6)
    assert (held.value().free_cores, held.value().reserve_cores) == (1, 1)
    held.allocate("shadow", 1.0, 0, 1, from_reserve=True)
    assert (held.value().free_cores, held.value().reserve_cores) == (1, 0)


def test_a_shadow_takes_the_reserve_before_anything_else() -> None:
    held = node()
    held.allocate("body", 7.0, 0, 7)
    assert held.value().free_cores == 0
    held.allocate("shadow", 1.0, 0, 1, from_reserve=True)
    assert (held.value().free_cores, held.reserve_cores) == (0, 0)
    held.release("shadow")
    assert held.reserve_cores == 1


def test_a_body_that_fits_nowhere_else_gets_it_and_gives_it_back() -> None:
    held = node()
    held.allocate("body", 7.0, 0, 7)
    held.allocate("another", 1.0, 0, 1)
    assert (held.value().free_cores, held.reserve_cores) == (0, 0)
    with pytest.raises(GnomonError, match="cores"):
        held.allocate("shadow", 1.0, 0, 1, from_reserve=True)
    held.release("another")
    assert (held.value().free_cores, held.reserve_cores) == (0, 1)


def test_a_shadow_larger_than_the_reserve_takes_the_rest_from_what_is_free() -> None:
    held = node()
    held.allocate("shadow", 3.0, 0, 3, from_reserve=True)
    assert (held.value().free_cores, held.reserve_cores) == (5, 0)


def test_nothing_is_reserved_or_lent_unless_asked_for() -> None:
    assert LocalNode((0, 1), 2, GIB).value() == Node(os.uname().nodename, 2, GIB, 2, GIB)
    assert LocalNode((0, 1), 2, GIB, lends=True).value().lends


def test_a_refusal_tells_what_a_body_could_have_had() -> None:
    held = node()
    held.allocate("body", 7.0, 0, 7)
    with pytest.raises(GnomonError, match=r"needs 2 cores and 0 MiB; node .* has 1 core "):
        held.allocate("another", 2.0, 0, 2)


def test_the_memory_of_empty_containers_is_not_free_but_an_instance_gets_it() -> None:
    held = node()
    held.set_pool_bytes(GIB // 4)
    assert held.value().free_memory_bytes == GIB - GIB // 4
    held.allocate("body", 1.0, GIB - GIB // 8, 1)
    assert (held.value().free_memory_bytes, held.unallocated_memory_bytes) == (0, GIB // 8)
    with pytest.raises(GnomonError, match="MiB"):
        held.allocate("another", 1.0, GIB // 4, 1)


MB = 10**6
PROFILE = made_up_profile(
    (BlockPlan(0.5, 20 * MB), BlockPlan(0.5, 80 * MB)), tuple(0.1 * size for size in range(1, 9)), overhead_bytes=100 * MB
)
KNOWN = Knowledge(PROFILE, Settings(slo_s=1.0, max_batch=8), Options(kappa=1.0, printed_kappa=True))


@pytest.mark.parametrize("weight_mode", ["shared", "private"])
def test_platform_policy_and_simulator_count_the_same(weight_mode: str) -> None:
    for pairing in KNOWN.pairings.ranked(1, 1):
        claimed = shadow_bytes(PROFILE.layers, pairing.pair, PROFILE, weight_mode)
        assert claimed == shadow_memory_bytes(KNOWN, Options(weight_mode=weight_mode), pairing.parameter_bytes, elsewhere=False)
        assert claimed == modelled(PROFILE, weight_mode).shadow_memory_bytes(pairing.pair)


def test_shared_weights_are_the_bodys_and_private_ones_its_own() -> None:
    pair = KNOWN.pairings.ranked(1, 1)[0].pair
    assert pair.blocks == (0, 1)
    assert shadow_bytes(PROFILE.layers, pair, PROFILE, "shared") == 100 * MB
    assert shadow_bytes(PROFILE.layers, pair, PROFILE, "private") == 200 * MB
    assert shadow_bytes(PROFILE.layers, pair, None, "shared") == MODEL_OVERHEAD_BYTES


def test_the_last_words_of_one_that_left_something_unread_are_heard() -> None:
    ours, theirs = packets.socket_pair()
    with ours:
        packets.send(theirs, {"event": "forked"})
        packets.send(theirs, {"event": "warm"})
        packets.send(ours, {"id": "never read"})
        theirs.close()
        assert packets.receive(ours) == ({"event": "forked"}, [])
        assert packets.receive(ours) == ({"event": "warm"}, [])
        with pytest.raises(packets.PeerGoneError):
            packets.receive(ours)


def test_a_batch_borrows_the_cores_that_nobody_has_in_use() -> None:
    busy = {"a", "b", "own"}
    node = LocalNode(tuple(range(8)), 8, GIB, lends=True, in_use=busy.__contains__)
    assert node.allocate("a", 1.0, 0, 8, held_while_idle=False, idle_cores=1).cpus == tuple(range(8))
    assert node.allocate("own", 2.0, 0, 2, held_while_idle=False).cpus == (0, 1)
    assert node.value().lends
    assert node.value().free_cores == 5
    assert (node.share("a"), node.lend("a", 8)) == (6, 6)
    node.allocate("b", 1.0, 0, 8, held_while_idle=False, idle_cores=1)
    assert (node.share("a"), node.share("b")) == (3, 3)
    busy.remove("own")
    assert node.share("a") == 4
    busy.remove("b")
    node.give_back("a")
    assert node.lend("a", 8) == 8


def test_a_machine_of_one_core_lends_none() -> None:
    node = LocalNode((0,), 1, GIB, in_use=lambda _: False)
    node.allocate("a", 1.0, 0, 1, held_while_idle=False, first=True, idle_cores=1)
    node.allocate("b", 1.0, 0, 1, held_while_idle=False, first=True, idle_cores=1)
    assert [node.lend(name, 1) for name in "ab"] == [1, 1]
    node.release("a")
    node.give_back("a")


def test_an_instance_that_claims_no_more_than_before_is_never_refused() -> None:
    node = LocalNode((0, 1), 2, GIB)
    node.allocate("a", 2.0, 0, 2)
    node.allocate("first", 2.0, 0, 2, held_while_idle=False, first=True)
    assert node.resize("first", 1.0, 2, idle_cores=1).cores == 1.0
    with refused(503, "no_capacity"):
        node.resize("first", 2.0, 2)
    assert node.lend("first", 2) == 1


MIB = 1 << 20
Groups = Callable[[Mapping[str, str]], Path]


@pytest.fixture
def groups(tmp_path: Path) -> Groups:
    """A folder of a control group with these files."""

    def write(files: Mapping[str, str]) -> Path:
        for name, text in files.items():
            path = tmp_path / "groups" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")
        return tmp_path / "groups"

    return write


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "250000 100000"}, 2),
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu.max": "max 100000"}, None),
        ({"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"}, 4),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ({}, None),
    ],
)
def test_cores_are_what_the_quota_allows(groups: Groups, files: Mapping[str, str], cores: int | None) -> None:
    assert quota_cores(groups(files)) == cores


@pytest.mark.parametrize("name", ["memory.max", "memory/memory.limit_in_bytes"])
def test_in_a_container_instances_get_the_limit_less_what_gnomon_takes(groups: Groups, name: str) -> None:
    assert memory_for_instances(groups({name: str(2048 * MIB)})) == 2048 * MIB - OWN_MEMORY_BYTES


def test_a_low_limit_leaves_half_to_instances(groups: Groups) -> None:
    assert memory_for_instances(groups({"memory.max": str(512 * MIB)})) == 256 * MIB


@pytest.mark.parametrize("files", [{}, {"memory.max": "max"}, {"memory/memory.limit_in_bytes": "9223372036854771712"}])
def test_without_a_limit_instances_get_the_machines_memory(groups: Groups, files: Mapping[str, str]) -> None:
    assert memory_for_instances(groups(files)) > 1024 * MIB


@pytest.fixture
def meminfo(tmp_path: Path) -> Path:
    path = tmp_path / "meminfo"
    path.write_text("MemTotal: 8388608 kB\nMemFree: 1024 kB\nMemAvailable: 4194304 kB\n")
    return path


def test_free_memory_of_a_container_is_what_its_limit_leaves_and_the_kernel_can_free(groups: Groups, meminfo: Path) -> None:
    files = {
        "memory.max": str(1000 * MIB),
        "memory.current": str(900 * MIB),
        "memory.stat": f"anon {400 * MIB}\ninactive_file {300 * MIB}",
    }
    assert available_memory_bytes(groups(files), meminfo) == 400 * MIB


def test_free_memory_is_the_machines_where_that_is_less_or_there_is_no_limit(groups: Groups, meminfo: Path) -> None:
    free = 4096 * MIB
    assert available_memory_bytes(groups({}), meminfo) == free
    assert available_memory_bytes(groups({"memory.max": str(9000 * MIB), "memory.current": "0"}), meminfo) == free


def test_free_memory_is_unknown_where_the_kernel_says_nothing(groups: Groups, tmp_path: Path) -> None:
    assert available_memory_bytes(groups({}), tmp_path / "none") is None
