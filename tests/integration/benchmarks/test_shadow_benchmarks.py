"""The benchmarks of Body and Shadow: how samples are judged, which blocks are chosen, and what the fuzzers must survive."""

import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.programs import THOROUGH
from benchmarks.report import Figure
from benchmarks.shadow import curve, models, starts
from benchmarks.shadow.models import (
    StoredModel,
    at_quantile,
    counted,
    first_blocks,
    first_share,
    interval,
    largest_blocks,
    named,
    quantile,
    share_of,
)
from gnomon_core.blocks import Block, Layers
from gnomon_core.interfaces import ModelEntry
from gnomon_core.signature import ModelSignature
from gnomon_runtime.pair.headers import Kind, Message, NonsenseError, Row, decode, encode
from tests.fuzz.coordinator import fuzz_blocks, fuzz_coordinator
from tests.fuzz.pair import fuzz_messages
from tests.fuzz.remote import fuzz_streams

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
    rng = random.Random(1)
    covered = 0
    for _ in range(1000):
        low, high = interval([rng.random() for _ in range(31)], 0.5)
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


def test_blocks_are_named_by_their_last_or_by_their_runs() -> None:
    model = layers(1, 2, 4, 3)
    assert named(model, (0, 1)) == "up to b1, 30 % of the weights"
    assert named(model, (0, 2)) == "2 of 4 blocks in 2 runs, 50 % of the weights"
    assert named(model, (1, 2)) == "2 of 4 blocks in 1 run, 60 % of the weights"


def made_up_figures(folder: Path) -> dict[str, list[Figure]]:
    """The result of each of these benchmarks for a model of four blocks."""
    (folder / "layers.json").write_text(json.dumps(layers(1000, 1000, 1000, 1000).to_json()))
    signature = ModelSignature("made-up", "1", (), ())
    model = StoredModel(folder, ModelEntry("made-up", "1", signature, folder, folder, {}, folder / "layers.json"))
    some = [starts.Start(size_mb, 1.0, 2.0, 3.0, 4.0, 5.0) for size_mb in starts.SIZES_MB]
    seen = {"pool": some, "fork": some, "burst, number 1": some}
    return {
        "curve": [curve.figure_of(model, (0, 1), [0.6, 0.7], 0.0)],
        "starts": starts.figures_of(seen, some, {"shared": [1.0], "private": [2.0]}),
    }


def test_every_figure_names_its_weight_mode(tmp_path: Path) -> None:
    for figures in made_up_figures(tmp_path).values():
        assert figures
        for figure in figures:
            mode = "private" if "private weights" in figure.key else "shared"
            assert figure.detail.endswith(f"weights {mode}"), figure


def test_a_model_of_the_curve_whose_package_is_missing_is_left_out_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """YOLOv8x needs the extra `yolo`, which no other does."""
    hidden = tmp_path / "hidden" / "ultralytics"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ImportError")
    monkeypatch.setenv("PYTHONPATH", str(hidden.parent))
    monkeypatch.setattr(models, "MODELS", tmp_path / "models")
    monkeypatch.setattr(curve, "CATALOG", {"yolov8x": models.CATALOG["yolov8x"]})
    curve.main(replace(THOROUGH, results=tmp_path))
    assert "yolov8x is skipped" in capsys.readouterr().out
    [figure] = json.loads((tmp_path / "shadow_curve.json").read_bytes())["figures"]
    assert (figure["key"], figure["value"]) == ("models left out", 1)
    assert "yolov8x" in figure["detail"]


def test_a_tensor_without_elements_may_not_claim_axes_of_any_length() -> None:
    """Found by the fuzzing: nothing was read, but torch refused to count the strides."""
    row = Row(0, 0, "FP32", (4, 0, 2**32 - 1, 2**32 - 1), (0, 1, 2, 3))
    with pytest.raises(NonsenseError):
        decode(encode(Message(Kind.DONE, 1, 0, 1, 4, (row,))), 1 << 16)


def test_a_few_hundred_hostile_messages_change_nothing() -> None:
    cases: Counter[str] = Counter()
    fuzz_messages(random.Random(3), 500, cases)
    assert cases.total() == 500
    assert len(cases) == 2, "some are read and some refused"
    fuzz_coordinator(random.Random(3), 300, cases)
    assert cases.total() >= 500 + 300 / 4, "of up to four messages of an instance the first one always arrives"


def test_shadows_that_claim_any_blocks_change_nothing() -> None:
    cases: Counter[str] = Counter()
    fuzz_blocks(random.Random(3), 200, cases)
    assert cases.total() >= 200


def test_a_few_hundred_hostile_streams_are_read_or_refused() -> None:
    cases: Counter[str] = Counter()
    fuzz_streams(random.Random(3), 400, cases)
    assert cases.total() == 400
    assert len(cases) == 3, "some are read, some refused and some never complete"
