"""What the benchmarks of Body and Shadow rest on: how samples are judged, which blocks are chosen, how the kernel is read."""

import random
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.shadow import fuzz_blocks, fuzz_coordinator, fuzz_messages, fuzz_remote, memory, prediction
from benchmarks.shadow.models import first_blocks, first_share, largest_blocks, share_of
from benchmarks.shadow.samples import at_quantile, counted, interval, quantile
from gnomon_core.blocks import Block, Layers
from gnomon_runtime.pair.headers import Kind, Message, NonsenseError, Row, decode, encode

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")]


def layers(*sizes: int, whole: tuple[int, ...] = ()) -> Layers:
    blocks = tuple(
        Block(f"b{n}", n, n + 1, (f"v{n}",), (f"v{n + 1}",), (), 1, size, splittable=n not in whole)
        for n, size in enumerate(sizes)
    )
    return Layers("0" * 64, (f"v{len(sizes)}",), blocks, {f"v{n}": 8 for n in range(len(sizes) + 1)})


def test_quantiles_lie_between_samples() -> None:
    assert quantile([4, 1, 2], 0.5) == 2
    assert quantile([2, 1], 0.5) == 1.5
    assert quantile([7], 0.99) == 7


def test_the_interval_of_a_median_leaves_out_what_a_fair_coin_does() -> None:
    assert interval(list(range(10)), 0.5) == (1, 8)
    assert interval([3.0], 0.5) == (3.0, 3.0)


def test_the_interval_of_a_median_covers_it_as_often_as_it_says() -> None:
    chance = random.Random(1)
    covered = 0
    for _ in range(1000):
        low, high = interval([chance.random() for _ in range(31)], 0.5)
        covered += low <= 0.5 <= high
    assert covered >= 940


@pytest.mark.parametrize(("goal", "met"), [(20, "met"), (0.5, "missed"), (4, "not resolved")])
def test_a_median_is_judged_by_its_whole_interval(goal: float, met: str) -> None:
    assert at_quantile("x", list(range(1, 11)), "ms", at_most=goal).met == met


def test_counts_are_on_one_side_of_their_goal() -> None:
    assert counted("x", 1, "", at_most=0).met == "missed"
    assert counted("x", 5, "", at_least=5).met == "met"


def test_blocks_are_chosen_by_their_weights() -> None:
    model = layers(1, 2, 4, 3)
    assert first_blocks(model, at_most_bytes=3) == (0, 1)
    assert first_share(model, 0.7) == (0, 1, 2)
    assert first_share(model, 1.0) == (0, 1, 2, 3)
    assert largest_blocks(model, at_most_bytes=5) == (0, 2)
    assert share_of(model, (2,)) == 0.4
    assert first_blocks(layers(1, 2, 4, whole=(1,)), at_most_bytes=100) == (0,)


def test_the_tables_of_splits_hold_each_wanted_split_once() -> None:
    tables = prediction.splits()
    for batch, wanted in prediction.SPLITS.items():
        assert tuple(table[batch - 1] for table in tables if table[batch - 1]) == wanted


def test_a_files_mappings_are_told_by_its_inode(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"x")
    inode = path.stat().st_ino
    smaps = (
        f"7f00-7f10 r--s 00000000 fe:00 {inode}  /anywhere\nSize: 64 kB\nPss: 16 kB\n"
        f"7f20-7f30 rw-p 00000000 00:00 0\nPss: 40 kB\n7f40-7f50 r--s 0 fe:00 {inode} /w (deleted)\nPss: 4 kB\n"
    )
    assert memory.mapped_share_bytes(smaps, path) == 20 * 1024


def test_a_tensor_without_elements_may_not_claim_axes_of_any_length() -> None:
    """Found by the fuzzing: nothing was read, but torch refused to count the strides."""
    row = Row(0, 0, "FP32", (4, 0, 2**32 - 1, 2**32 - 1), (0, 1, 2, 3))
    with pytest.raises(NonsenseError):
        decode(encode(Message(Kind.DONE, 1, 0, 1, 4, (row,))), 1 << 16)


def test_a_few_hundred_hostile_messages_change_nothing() -> None:
    cases: Counter[str] = Counter()
    fuzz_messages.fuzz_messages(random.Random(3), 500, cases)
    assert cases.total() == 500
    assert len(cases) == 2, "some are read and some refused"
    fuzz_coordinator.fuzz_coordinator(random.Random(3), 300, cases)
    assert cases.total() >= 500 + 300 / 4, "of up to four messages of an instance the first one always arrives"


def test_shadows_that_claim_any_blocks_change_nothing() -> None:
    cases: Counter[str] = Counter()
    fuzz_blocks.fuzz_blocks(random.Random(3), 200, cases)
    assert cases.total() >= 200


def test_a_few_hundred_hostile_streams_are_read_or_refused() -> None:
    cases: Counter[str] = Counter()
    fuzz_remote.fuzz_streams(random.Random(3), 400, cases)
    assert cases.total() == 400
    assert len(cases) == 3, "some are read, some refused and some never complete"
