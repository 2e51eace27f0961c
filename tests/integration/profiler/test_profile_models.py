"""A real small model, measured for real: the numbers make sense, and a run that was killed goes on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from gnomon_core.errors import GnomonError
from gnomon_core.packaging import jemalloc
from gnomon_core.pairs import Pair, best_split, pair_seconds
from gnomon_core.profiles import ModelProfile
from gnomon_profiler.extractor import Description, capture
from gnomon_profiler.measuring.profiling import ProfileOptions, profile_model
from gnomon_profiler.measuring.session import MeasuringProcess, this_machine
from gnomon_profiler.measuring.store import ProfileStore, read_profile
from gnomon_profiler.repository import DirectoryRepository

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")]
MB = 1_000_000


class Funnel(nn.Module):
    """Most of the work is in its first layers and most of the weights in its last one, as in the paper's models."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU())
        self.narrow = nn.Sequential(nn.Conv2d(32, 32, 3, stride=4), nn.ReLU(), nn.Conv2d(32, 16, 3, stride=4), nn.ReLU())
        self.head = nn.Linear(16 * 7 * 7, 2000)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.head(self.narrow(self.wide(image)).flatten(1))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = Funnel().requires_grad_(requires_grad=False).eval()
    files = capture(module, (torch.zeros(2, 3, 112, 112),), Description("funnel", "1"))
    repository = DirectoryRepository(folder)
    repository.put("funnel", "1", files)
    repository.put("plain", "1", {name: data for name, data in files.items() if name != "layers.json"})
    return folder


@pytest.fixture(scope="module")
def profile(models: Path) -> ModelProfile:
    entry = DirectoryRepository(models).get("funnel")
    options = ProfileOptions(cores=(1,), batches=(1, 2, 4, 8), repeats=3)
    measured, path = profile_model(entry, ProfileStore(models), options, lambda _: None)
    assert read_profile(path) == measured
    assert not path.with_suffix(".journal").exists()
    return measured


def test_larger_batches_take_longer_and_in_proportion_at_most(profile: ModelProfile) -> None:
    row = profile.whole.seconds[1]
    # Eight times the work; the bounds leave room for a machine that has other things to do.
    assert 1.5 * row[1] < row[8] < 40 * row[1]
    assert row[2] < row[8]


def test_blocks_sum_to_the_whole(profile: ModelProfile) -> None:
    for batch in (1, 2, 4, 8):
        blocks_s = sum(table.seconds[1][batch] for table in profile.blocks)
        assert blocks_s == pytest.approx(profile.whole.seconds[1][batch], rel=1e-4)


def test_the_block_with_the_most_work_takes_the_longest(profile: ModelProfile) -> None:
    most_work = max(range(len(profile.blocks)), key=lambda number: profile.layers.blocks[number].macs)
    slowest = max(range(len(profile.blocks)), key=lambda number: profile.blocks[number].seconds[1][8])
    assert most_work == slowest


def test_more_weights_take_longer_to_load_as_ones_own_copy(profile: ModelProfile) -> None:
    heaviest = max(range(len(profile.blocks)), key=lambda number: profile.layers.blocks[number].parameter_bytes)
    assert profile.layers.blocks[heaviest].parameter_bytes > 6 * MB
    assert profile.block_load_s["private"][heaviest] == max(profile.block_load_s["private"])
    assert profile.loading["private"].seconds(100 * MB) > profile.loading["shared"].seconds(100 * MB) > 0


def test_handing_over_costs_what_memory_costs(profile: ModelProfile) -> None:
    # 0.06 to 0.3 ms a MB where it was tried; a socket or a file on disk would be beyond these bounds.
    assert 2e-5 < MB * profile.transfer_seconds_per_byte < 2e-3
    assert 1e-6 < profile.transfer_fixed_s < 5e-3


def test_handing_over_to_another_node_costs_more_than_that(profile: ModelProfile) -> None:
    assert profile.network is not None
    assert profile.network.source == "TCP over loopback, without a wire"
    assert MB * profile.transfer_seconds_per_byte < MB * profile.network.seconds_per_byte < 2e-2
    assert 1e-5 < profile.network.fixed_s < 2e-2


def test_an_instance_holds_more_than_its_values_and_less_than_torch_itself(profile: ModelProfile) -> None:
    values_bytes = 8 * 32 * 112 * 112 * 4
    assert values_bytes < profile.overhead_bytes < values_bytes + 200 * MB


def test_starts_are_those_of_forks(profile: ModelProfile) -> None:
    assert 0 < profile.shadow_start_s < profile.body_start_s < 2.0


def test_a_profile_predicts_a_pair(profile: ModelProfile) -> None:
    numbers = [number for number, block in enumerate(profile.layers.blocks) if block.macs > MB]
    split = best_split(profile, (1, 1), numbers, 8)
    paired_s = pair_seconds(profile, 1, Pair(1, tuple(numbers), split), 8)
    assert split[7] > 0
    assert paired_s is not None
    assert paired_s < profile.whole.seconds[1][8]


def test_a_profile_says_where_it_comes_from(profile: ModelProfile) -> None:
    assert profile.provenance["torch"] == torch.__version__
    assert profile.provenance["machine_id"] == this_machine().id
    assert profile.provenance["allocator"].startswith("glibc" if jemalloc() is None else "jemalloc"), "as instances have it"
    assert set(profile.spread) == {"1/1", "1/2", "1/4", "1/8"}


def test_a_profile_is_completed_and_replaced_only_where_that_is_asked_for(models: Path, tmp_path: Path) -> None:
    entry, store, said = DirectoryRepository(models).get("funnel"), ProfileStore(tmp_path), list[str]()
    first, _ = profile_model(entry, store, ProfileOptions(cores=(1,), batches=(1, 2), repeats=3), said.append)
    both, path = profile_model(entry, store, ProfileOptions(cores=(1,), batches=(2, 4), repeats=3), said.append)
    assert both.whole.seconds[1] == {**first.whole.seconds[1], 4: both.whole.seconds[1][4]}
    assert any("goes on from its profile of" in line for line in said)
    assert read_profile(path) == both
    afresh, _ = profile_model(entry, store, ProfileOptions(cores=(1,), batches=(1,), repeats=3, afresh=True), said.append)
    assert set(afresh.whole.seconds[1]) == {1}


def test_failure_of_the_measuring_process_reaches_the_user(models: Path) -> None:
    with MeasuringProcess() as process:
        with pytest.raises(GnomonError, match="FileNotFoundError"):
            list(process.measure({"measure": "memory", "program": "/nowhere", "weights": "/nowhere", "batch": 1}))
        entry = DirectoryRepository(models).get("funnel")
        order = {"measure": "memory", "program": str(entry.program), "weights": str(entry.weights), "batch": 1}
        assert next(iter(process.measure(order)))["busy_bytes"] > 0


# The command line


@pytest.fixture
def started(models: Path, tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Where a test leaves the processes that it starts."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def gnomon(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "from gnomon_cli.main import main; main()", *arguments]


def measuring_processes(parent: int) -> list[int]:
    text = Path(f"/proc/{parent}/task/{parent}/children").read_text(encoding="ascii")
    return [int(child) for child in text.split()]


def test_runs_that_were_ended_go_on_with_the_same_command(
    models: Path, tmp_path: Path, started: list[subprocess.Popen[str]]
) -> None:
    folder = tmp_path / "models"
    entry = DirectoryRepository(models).get("funnel")
    files = {"program.json": entry.program, "weights.safetensors": entry.weights, "layers.json": entry.layers}
    DirectoryRepository(folder).put("funnel", "1", {name: path.read_bytes() for name, path in files.items() if path})
    command = gnomon("models", "profile", "funnel", "--models", str(folder), "--cores", "1", "--batches", "1,2", "--repeats", "3")

    def end_after_a_cell(number: signal.Signals) -> tuple[int, str]:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stderr is not None
        said = ""
        while " left)" not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        children = measuring_processes(process.pid)
        process.send_signal(number)
        said += process.communicate(timeout=20)[1]
        assert children
        assert all(ended(child) for child in children)
        assert "Traceback" not in said
        return process.returncode, said

    status, said = end_after_a_cell(signal.SIGKILL)
    assert (status, "goes on from there" in said) == (-signal.SIGKILL, False)
    status, said = end_after_a_cell(signal.SIGINT)
    assert re.search("[1-3] of 8 cells are measured already", said)
    assert (status, "goes on from there" in said) == (130, True)
    store = ProfileStore(folder)
    assert list(store.list()) == []

    last = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True, timeout=90)
    assert re.search("[2-7] of 8 cells are measured already", last.stderr)
    measured = ModelProfile.from_json(json.loads(last.stdout))
    assert {batch for row in measured.whole.seconds.values() for batch in row} == {1, 2}
    assert measured.provenance["starts"].startswith("the local platform, 9 starts of each; a Shadow of ")
    assert read_profile(store.path("funnel@1", this_machine().id)) == measured
    assert not store.journal("funnel@1", this_machine().id).exists()


def ended(pid: int) -> bool:
    """True if a process has ended; a zombie that nobody has collected yet has."""
    for _ in range(200):
        try:
            state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        os.sched_yield()
        signal.sigtimedwait([], 0.02)
    return False


def say(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(gnomon(*arguments), capture_output=True, text=True, check=False, timeout=30)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("profile", "nobody"), 1, "There is no model 'nobody'"),
        (("profile", "plain"), 1, "without its layer blocks"),
        (("profile", "funnel", "--cores", "1,500"), 1, "500 cannot be measured"),
        (("profile", "funnel", "--batches", "none"), 2, "not a list of numbers"),
        (("profile", "funnel", "--repeats", "1"), 2, "--repeats"),
        (("profiles", "nobody"), 1, "There is no model 'nobody'"),
        (("profiles", "plain"), 1, "plain@1 has no profile. Measure it: gnomon models profile plain"),
    ],
)
def test_unmeasurable_models_are_refused(models: Path, arguments: tuple[str, ...], code: int, words: str) -> None:
    answer = say("models", *arguments, "--models", str(models))
    assert answer.returncode == code
    assert words in answer.stderr
    assert "Traceback" not in answer.stderr


def test_profiles_are_listed_and_shown_with_other_cores_marked(models: Path, profile: ModelProfile) -> None:
    listed = say("models", "profiles", "--models", str(models))
    assert listed.returncode == 0
    assert listed.stdout.splitlines()[1].startswith(f"funnel@1  {this_machine().id}  1 ")
    shown = say("models", "profiles", "funnel", "--models", str(models)).stdout
    assert "measured, spread up to" in shown
    for serial in (2, 5, 10):
        assert f"extrapolated, {serial} % serial" in shown
    assert "16*" in shown
    for shown_line in ("load shared: ", "hand-over: ", "to another node: "):
        [line] = [line for line in shown.splitlines() if line.startswith(shown_line)]
        assert re.search(r"; \d+ sizes up to [\d.]+ MB, spread up to \d+ %, up to \d+ % off the line$", line), line
    [document] = json.loads(say("models", "profiles", "funnel", "--serial", "5", "--json", "--models", str(models)).stdout)
    assert ModelProfile.from_json(document) == profile
    [beyond] = document["extrapolated"]
    assert beyond["serial_fraction"] == 0.05
    expected = profile.extrapolated(0.05)
    assert beyond["whole_s"]["16"]["2"] == expected.whole.at(16, 2)
    assert [table["8"]["1"] for table in beyond["blocks_s"]] == [table.at(8, 1) for table in expected.blocks]


def test_a_file_that_is_no_profile_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}", encoding="utf-8")
    answer = say("models", "profiles", "--file", str(tmp_path / "x.json"))
    assert answer.returncode == 1
    assert "is no profile" in answer.stderr
