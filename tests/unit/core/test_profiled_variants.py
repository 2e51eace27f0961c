"""Profiled variants in a file: what was disturbed is left out, and each batch size is a variant."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gnomon_core.profiled_variants import DISTURBED, FORMAT, MeasuredEngine
from gnomon_simulator.variant_catalogs import profiled_variants

QUIET = MeasuredEngine("net@1", "openvino-int8", 2, 0.9, 0.5, {1: 0.01, 4: 0.02}, 0.1, 1000, 190.0, {"openvino": "1"})
LOUD = MeasuredEngine("net@1", "program", 1, None, 0.1, {1: 0.05}, DISTURBED + 0.1, 2000, 20.0, {})


def saved(folder: Path, document: object) -> Path:
    path = folder / "machine.json"
    path.write_text(json.dumps(document))
    return path


def test_quiet_measurements_are_a_variant_for_each_largest_batch(tmp_path: Path) -> None:
    path = saved(tmp_path, {"format": FORMAT, "engines": [QUIET.to_json(), LOUD.to_json()]})
    small, large = profiled_variants(path)
    assert (small.id, large.id) == ("net@1/openvino/int8/2/1", "net@1/openvino/int8/2/4")
    assert (small.latency_s, large.latency_s) == ({1: 0.01}, {1: 0.01, 4: 0.02})
    assert (small.saturation_rps, large.saturation_rps) == (pytest.approx(100.0), 190.0)
    assert (large.architecture, large.precision, large.cores, large.accuracy, large.cost_per_s) == ("net", "int8", 2, 0.9, 2.0)
    assert [variant.engine for variant in profiled_variants(path, disturbed=True)] == ["openvino", "openvino", "program"]


@pytest.mark.parametrize(
    "document", [[], {}, {"format": FORMAT}, {"format": FORMAT, "engines": [{}]}, {"format": FORMAT, "engines": 1}]
)
def test_file_without_variants_is_refused(tmp_path: Path, document: object) -> None:
    with pytest.raises(ValueError, match="variants"):
        profiled_variants(saved(tmp_path, document))
