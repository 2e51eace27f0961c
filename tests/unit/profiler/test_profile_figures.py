"""The figures' numbers, from a profile whose answers can be worked out by hand."""

import csv
import math
from dataclasses import replace
from pathlib import Path

import pytest

from gnomon_core.blocks import Block, Layers
from gnomon_core.profiles import LatencyTable, Loading, ModelProfile
from gnomon_profiler.figures.plots import draw
from gnomon_profiler.figures.tables import (
    correlation,
    drawable,
    increases,
    offloaded,
    output_increases,
    pearson,
    sensitivities,
    short_name,
    write_tables,
)

MB = 1_000_000
# Milliseconds of each block at batches of 1 to 5. From 2 to 4 they grow by 20, 8, 4 and 0 ms.
LATENCIES_MS = {
    "early": (10, 20, 30, 40, 50),
    "middle": (4, 8, 12, 16, 20),
    "late": (4, 6, 8, 10, 12),
    "head": (3, 3, 3, 3, 3),
}
SIZES = {"early": 1 * MB, "middle": 2 * MB, "late": 3 * MB, "head": 14 * MB}
OUTPUT_BYTES = {"early": 4 * MB, "middle": 2 * MB, "late": MB, "head": 4000}


def table(milliseconds: tuple[int, ...]) -> LatencyTable:
    return LatencyTable({1: {batch: value / 1000 for batch, value in enumerate(milliseconds, 1)}})


@pytest.fixture
def profile() -> ModelProfile:
    names = list(LATENCIES_MS)
    blocks = tuple(
        Block(name, index, index + 1, (before,), (name,), (f"w{index}",), 10, SIZES[name], splittable=name != "head")
        for index, (before, name) in enumerate(zip(("image", *names), names, strict=False))
    )
    whole = tuple(map(sum, zip(*LATENCIES_MS.values(), strict=True)))
    return ModelProfile(
        model="torchvision:made-up@1",
        layers=Layers("abc", ("head",), blocks, {"image": 600_000, **OUTPUT_BYTES}),
        whole=table(whole),
        blocks=tuple(table(row) for row in LATENCIES_MS.values()),
        loading={"shared": Loading(0.002, 0.0), "private": Loading(0.002, 1e-9)},
        body_start_s=0.05,
        shadow_start_s=0.01,
        overhead_bytes=0,
        transfer_fixed_s=0.0001,
        transfer_seconds_per_byte=1e-10,
    )


def test_figure_2_sensitive_blocks_are_small_ones(profile: ModelProfile) -> None:
    rows = sensitivities(profile)
    assert [1000 * row.increase_s for row in rows] == pytest.approx([20, 8, 4, 0])
    assert [row.parameter_bytes for row in rows] == list(SIZES.values())
    assert [1000 * row.load_s for row in rows] == pytest.approx([3, 4, 5, 16])


def test_figure_2_takes_measured_loading_times_where_there_are_any(profile: ModelProfile) -> None:
    object.__setattr__(profile, "block_load_s", {"private": (0.1, 0.2, 0.3, 0.4)})
    assert [row.load_s for row in sensitivities(profile)] == [0.1, 0.2, 0.3, 0.4]


def test_figure_3_is_a_distribution(profile: ModelProfile) -> None:
    to_four = [row for row in increases(profile) if row.to_batch == 4]
    assert [1000 * row.increase_s for row in to_four] == pytest.approx([0, 4, 8, 20])
    assert [row.share_of_blocks for row in to_four] == [0.25, 0.5, 0.75, 1.0]
    assert {row.to_batch for row in increases(profile)} == {3, 4, 5}


def only(profile: ModelProfile, *batches: int) -> ModelProfile:
    """As if no other batches had been measured."""

    def fewer(whole: LatencyTable) -> LatencyTable:
        return LatencyTable({1: {batch: whole.seconds[1][batch] for batch in batches}})

    return replace(profile, whole=fewer(profile.whole), blocks=tuple(map(fewer, profile.blocks)))


def test_figure_3_has_no_curve_of_a_batch_that_was_not_measured(profile: ModelProfile, tmp_path: Path) -> None:
    """What lies on a line between two others says nothing about that batch."""
    some = only(profile, 1, 2, 4)
    assert {row.to_batch for row in increases(some)} == {4}
    assert increases(some) == [row for row in increases(profile) if row.to_batch == 4]
    assert {row.to_batch for row in output_increases(some)} == {3, 4, 5}, "by arithmetic"
    [picture, _] = draw([some], tmp_path)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_figures_need_the_batches_that_they_compare(profile: ModelProfile) -> None:
    assert drawable(profile)
    assert not drawable(profile, 16)
    some = only(profile, 1, 2, 5)
    assert not drawable(some)
    for rows in (sensitivities, offloaded, correlation):
        with pytest.raises(ValueError, match="batches of 2 and 4 were not measured"):
            rows(some)


def test_figure_4_offloads_the_largest_increase_first_and_never_what_cannot_be_split(profile: ModelProfile) -> None:
    rows = offloaded(profile)
    assert [row.blocks for row in rows] == [0, 1, 2, 3]
    assert [1000 * row.ideal_s for row in rows] == pytest.approx([32, 12, 4, 0])
    assert [row.share_of_weights for row in rows] == pytest.approx([0, 0.05, 0.15, 0.3])


def test_figure_4_with_hand_overs_is_equation_6(profile: ModelProfile) -> None:
    # Without a Shadow: the whole increase. With "early": 20 ms less, but two samples of 0.6 MB go there and of 4 MB come back,
    # which takes 2 · 0.1 ms + 9.2 MB · 0.1 ms/MB = 1.12 ms; the Shadow's half is the slower one by that.
    rows = offloaded(profile)
    assert 1000 * rows[0].paired_s == pytest.approx(32)
    assert 1000 * rows[1].paired_s == pytest.approx(12 + 1.12)
    # "early" and "middle" are one run: 4 MB need not come back between them, only 2 MB at the end.
    assert 1000 * rows[2].paired_s == pytest.approx(4 + 0.2 + 2 * 2.6 * 0.1)


def test_figure_7_outputs_grow_with_the_samples(profile: ModelProfile) -> None:
    rows = [row for row in output_increases(profile) if row.block == "early"]
    assert [(row.to_batch, row.increase_bytes) for row in rows] == [(3, 4 * MB), (4, 8 * MB), (5, 12 * MB)]


def test_the_appendix_finds_the_anti_correlation(profile: ModelProfile) -> None:
    found = correlation(profile)
    assert found.spearman == pytest.approx(-1.0)
    # Around their means of 8 and 5: the products sum to -112, the squares to 224 and 110.
    assert found.pearson == pytest.approx((12 * -4 + 0 * -3 + -4 * -2 + -8 * 9) / math.sqrt(224 * 110))


def test_correlations_of_what_does_not_vary_are_no_numbers() -> None:
    assert math.isnan(pearson([1, 1], [1, 2]))
    assert pearson([1, 2, 3], [6, 4, 2]) == pytest.approx(-1)


def test_equal_values_share_their_rank(profile: ModelProfile) -> None:
    tied = ModelProfile(
        **{name: getattr(profile, name) for name in ModelProfile.__slots__} | {"blocks": (profile.blocks[0],) * 4}
    )
    assert math.isnan(correlation(tied).spearman)


def test_unmeasured_cores_are_refused(profile: ModelProfile) -> None:
    with pytest.raises(ValueError, match="16 cores were not measured"):
        sensitivities(profile, 16)


def test_tables_become_files(profile: ModelProfile, tmp_path: Path) -> None:
    assert short_name(profile) == "made-up"
    written = write_tables([profile], tmp_path)
    assert sorted(path.name for path in written) == [
        "anti-correlation.csv",
        *(f"made-up-figure-{number}.csv" for number in (2, 3, 4, 7)),
    ]
    with (tmp_path / "made-up-figure-2.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert (rows[0]["block"], float(rows[0]["increase_s"])) == ("early", pytest.approx(0.02))


def test_pictures_are_drawn(profile: ModelProfile, tmp_path: Path) -> None:
    written = draw([profile, profile], tmp_path)
    assert [path.name for path in written] == ["made-up.png", "made-up.png", "anti-correlation.png"]
    for path in written:
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.stat().st_size < 100_000
