"""The cores and memory that instances may use, by the files of control groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from gnomon_platforms.local.nodes import OWN_MEMORY_BYTES, available_memory_bytes, memory_for_instances, quota_cores

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
