"""Zygotes, and the memory of the instances that they fork."""

import ctypes
import mmap
import os
import runpy
import selectors
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gnomon_core.packaging import for_libraries, jemalloc
from gnomon_runtime import linux, zygote_table
from gnomon_runtime.child_init import Steps
from gnomon_runtime.zygote import rehearsal_of, rehearse
from gnomon_runtime.zygote_table import ZygoteEvents, ZygoteTable

UNTIL_HUNG_UP = "import socket, sys; socket.socket(fileno=int(sys.argv[1])).recv(1)"


class Owner:
    """A table, and what it has told of its zygotes."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.not_forked: list[str] = []
        self.all_taken = False
        self.children: list[tuple[str, int]] = []
        events = ZygoteEvents(self.forked, self.not_forked.append, lambda: None, lambda _: self.all_taken)
        self.table = ZygoteTable(self.selector, lambda event, **details: self.events.append((event, details)), events)

    def forked(self, instance: str, pid: int, join: list[str]) -> None:
        del join
        self.children.append((instance, pid))

    def start(self, zygote: str, number: int, python: str = sys.executable, script: str = UNTIL_HUNG_UP) -> None:
        command = [python, "-I", "-S", "-c", script]
        self.table.start({"id": zygote, "start": number, "command": command, "environment": {}}, ())

    def hear(self) -> None:
        """Until the zygote has said something, and its end was told if that ended it."""
        for key, _ in self.selector.select(30.0):
            key.data()

    def gone(self) -> list[tuple[str, int]]:
        """Which zygotes have ended, and which start of theirs that was."""
        return [(details["zygote"], details["start"]) for event, details in self.events if event == "zygote_gone"]


@pytest.fixture
def owner() -> Iterator[Owner]:
    owner = Owner()
    yield owner
    for zygote in ("x", "y"):
        owner.table.retire(zygote)
    owner.selector.close()


def test_restarted_zygote_replaces_the_old_one(owner: Owner) -> None:
    before = descriptors()
    owner.start("x", 1)
    [first] = owner.table.pids()
    order, log = os.pipe()
    owner.table.fork("x", "i1", (), [order, log])
    owner.start("y", 2)
    owner.start("x", 3)
    assert owner.gone() == [("x", 1)]
    assert owner.not_forked == ["i1"], "what the first was to fork is told of"
    assert not Path(f"/proc/{first}").exists()
    assert len(owner.table.pids()) == 2
    # Nobody listens to one that is not there any more: its end of file would never be over.
    assert len(owner.selector.get_map()) == 2
    owner.table.retire("x")
    owner.table.retire("y")
    assert owner.gone() == [("x", 1), ("x", 3), ("y", 2)]
    assert descriptors() == before


def test_zygote_that_cannot_start_is_reported_by_its_number(owner: Owner) -> None:
    owner.start("x", 7, "/nowhere/python")
    assert owner.gone() == [("x", 7)]
    owner.table.retire("x")
    assert owner.gone() == [("x", 7)], "it has ended once"


SAYS = """
import json, os, socket, sys
mine = socket.socket(fileno=int(sys.argv[1]))
mine.send({said}.encode())
mine.recv(65536)
mine.recv(1)
"""


@pytest.mark.parametrize(
    "said",
    [
        "'{}'",
        """'{"event": "grown"}'""",
        """'{"event": "spare"}'""",
        """'{"event": "spare", "pid": "1"}'""",
        """'{"event": "spare", "pid": 1}'""",
        """json.dumps({"event": "spare", "pid": os.getppid()})""",
        """json.dumps({"event": "spare", "pid": os.getpid()})""",
        """json.dumps({"event": "forked", "id": "i1", "pid": os.getppid()})""",
        """json.dumps({"event": "forked", "id": ["i1"], "pid": 999999999})""",
        """'{"event": "warm"}'""",
        """json.dumps({"event": "forked", "id": "another", "pid": 999999999})""",
    ],
)
def test_zygote_that_reports_foreign_processes_is_killed_alone(
    owner: Owner, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """A forged pid would have the supervisor end, limit or lose the process with that pid: the gateway, or another's instance."""
    owner.start("y", 1)
    owner.start("x", 2, script=SAYS.format(said=said))
    order, log = os.pipe()
    owner.table.fork("x", "i1", (), [order, log])
    owner.hear()
    assert owner.gone() == [("x", 2)]
    assert owner.not_forked == ["i1"]
    assert owner.children == []
    assert "zygote x is ended" in capfd.readouterr().err
    assert len(owner.table.pids()) == 1


def test_program_cannot_pass_off_a_known_child_as_its_spare(owner: Owner) -> None:
    forked = """
import os, time
child = os.fork()
if not child:
    time.sleep(60)
"""
    owner.all_taken = True
    owner.start("x", 1, script=forked + SAYS.format(said="""json.dumps({"event": "spare", "pid": child})"""))
    owner.hear()
    assert owner.gone() == [("x", 1)]


def test_a_child_of_its_own_is_believed(owner: Owner) -> None:
    script = """
import os, time
child = os.fork()
if not child:
    time.sleep(60)
"""
    owner.start("x", 1, script=script + SAYS.format(said="""json.dumps({"event": "forked", "id": "i1", "pid": child})"""))
    order, log = os.pipe()
    owner.table.fork("x", "i1", (), [order, log])
    owner.hear()
    [(instance, pid)] = owner.children
    assert instance == "i1"
    os.kill(pid, 9)
    assert owner.gone() == []


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_all_steps_are_taken() -> None:
    taken: list[int] = []

    def steps() -> Steps:
        for number in range(3):
            taken.append(number)
            yield

    assert rehearse(steps) == []
    assert taken == [0, 1, 2]


def test_failed_rehearsal_is_reported() -> None:
    def steps() -> Steps:
        yield
        raise RuntimeError("no such kernel")

    assert rehearse(steps) == ["rehearsal: RuntimeError: no such kernel"]


def test_only_our_own_modules_have_rehearsals() -> None:
    assert rehearse(rehearsal_of(["json", "gnomon_runtime.zygote"])) == []


MODULE = runpy.run_path(str(Path(__file__).parents[3] / "templates" / "gnomon-body" / "slim_torch.py"))
named_by, slim = MODULE["named_by"], MODULE["slim"]


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """Two libraries of a vendor, of which torch's own names one; its sources lie elsewhere."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    site, source = tmp_path / "site-packages", tmp_path / "empty.c"
    source.write_text("int answer(void) { return 42; }\n")
    vendor = site / "nvidia" / "cu13" / "lib"
    for folder in (vendor, site / "torch" / "lib", site / "triton"):
        folder.mkdir(parents=True)
    for name in ("libcudart.so.13", "libcard.so.1"):
        subprocess.run([compiler, "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", vendor / name, source], check=True)
    (vendor / "libcard.so").symlink_to("libcard.so.1")
    (vendor / "libcudart.so").symlink_to("libcudart.so.13")
    place = "-Wl,-rpath,$ORIGIN/../../nvidia/cu13/lib"
    entry = ["-o", site / "torch" / "lib" / "libtorch_python.so", source, vendor / "libcudart.so.13"]
    subprocess.run([compiler, "-shared", "-fPIC", "-Wl,--no-as-needed", place, *entry], check=True)
    (site / "triton" / "compiler").write_bytes(b"0" * 1000)
    return site


def test_only_what_nothing_loads_is_removed(packages: Path) -> None:
    vendor = packages / "nvidia" / "cu13" / "lib"
    size_bytes = (vendor / "libcard.so.1").stat().st_size
    assert vendor / "libcudart.so.13" in named_by(packages / "torch" / "lib" / "libtorch_python.so")
    assert slim(packages / "torch") == size_bytes + 1000
    assert sorted(path.name for path in vendor.iterdir()) == ["libcudart.so", "libcudart.so.13"]
    assert not (packages / "triton").exists()
    # A second time there is nothing left to remove.
    assert slim(packages / "torch") == 0


def test_a_build_for_the_processor_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "torch" / "lib").mkdir(parents=True)
    (tmp_path / "torch" / "lib" / "libtorch_python.so").write_bytes(b"")
    (tmp_path / "triton").mkdir()
    assert slim(tmp_path / "torch") == 0
    assert (tmp_path / "triton").exists()


PROGRAM = """
import ctypes, pathlib
from gnomon_runtime.engine.torch_support import keep_freed_memory

def resident_mib():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20

library = ctypes.CDLL(None)
library.malloc.restype, library.malloc.argtypes, library.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
kept = keep_freed_memory()
begun = resident_mib()
for _ in range(3):
    block = library.malloc(64 << 20)
    ctypes.memset(block, 1, 64 << 20)
    library.free(block)
print(kept, hasattr(library, "mallctl"), resident_mib() - begun)
"""


@pytest.mark.parametrize("allocator", [None, jemalloc()], ids=["glibc", "jemalloc"])
def test_a_block_that_was_freed_is_neither_given_back_nor_taken_twice(
    allocator: Path | None, request: pytest.FixtureRequest
) -> None:
    if allocator is None and "jemalloc" in request.node.name:
        pytest.skip("jemalloc is not installed here: apt-get install libjemalloc2")
    environment = {**os.environ, **for_libraries(allocator)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    kept, is_jemalloc, more_mib = done.stdout.split()
    assert (kept, is_jemalloc, done.stderr) == ("True", str(allocator is not None), "")
    assert 60 <= int(more_mib) <= 70


@pytest.mark.parametrize("folder", ["lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "lib64", "lib", "local/lib"])
def test_the_library_is_found_where_distributions_install_it(tmp_path: Path, folder: str) -> None:
    assert jemalloc(tmp_path) is None
    library = tmp_path / folder / "libjemalloc.so.2"
    library.parent.mkdir(parents=True)
    library.touch()
    assert jemalloc(tmp_path) == library


def test_without_the_library_nothing_is_loaded_before_the_others() -> None:
    assert "LD_PRELOAD" not in for_libraries(None)
    assert for_libraries(Path("/usr/lib64/libjemalloc.so.2"))["LD_PRELOAD"] == "/usr/lib64/libjemalloc.so.2"


MAPS = """\
55d0c0000000-55d0c0400000 rw-p 00000000 00:00 0                          [heap]
7f0000180000-7f0000680000 rw-p 00000000 00:00 0
7f0001000000-7f0001400000 rw-p 00000000 08:01 77                         /usr/lib/libc.so.6
7f0002000000-7f0002400000 r--p 00000000 00:00 0
7f0003000000-7f0003100000 rw-p 00000000 00:00 0
7f0004000000-7f0004400000 rw-s 00000000 00:01 99                         /memfd:hand-over (deleted)
"""


def test_huge_pages_are_placed_in_anonymous_writable_memory_only() -> None:
    assert [*linux.huge_page_addresses(MAPS)] == [0x55D0C0000000, 0x55D0C0200000, 0x7F0000200000, 0x7F0000400000]


@pytest.mark.parametrize("maps", ["", "7f0000000000-7f00001ff000 rw-p 00000000 00:00 0\n"])
def test_mapping_smaller_than_a_huge_page_has_none(maps: str) -> None:
    assert [*linux.huge_page_addresses(maps)] == []


def test_memory_content_survives_gathering() -> None:
    child = os.fork()
    if child == 0:
        with mmap.mmap(-1, 4 * linux.HUGE_BYTES) as memory:
            for at in range(0, len(memory), mmap.PAGESIZE):
                memory[at : at + 8] = at.to_bytes(8, "little")
            gathered = linux.gather_huge_pages()
            same = all(memory[at : at + 8] == at.to_bytes(8, "little") for at in range(0, len(memory), mmap.PAGESIZE))
            os._exit(0 if same and (gathered == 0 or _huge_bytes() > 0) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_kernel_error_is_raised_as_oserror() -> None:
    buffer = ctypes.create_string_buffer(8)
    with pytest.raises(OSError, match="madvise"):
        linux.advise(ctypes.addressof(buffer) | 1, linux.HUGE_BYTES, linux.MADV_COLLAPSE)


def _huge_bytes() -> int:
    """The bytes of this process in huge pages, as the kernel counts them."""
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("AnonHugePages:"))


def test_fork_whose_process_in_between_ends_meanwhile_comes_from_its_zygote(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel says 0 for the parent of a process that it is removing: such a zygote was ended as one that lies."""
    parents = {9: [8, 5], 8: [0]}
    monkeypatch.setattr(zygote_table, "_parent", lambda pid: parents[pid].pop(0))
    assert zygote_table._comes_from(9, {4, 5})
    parents = {9: [8, 8], 8: [7]}
    assert not zygote_table._comes_from(9, {4, 5})
