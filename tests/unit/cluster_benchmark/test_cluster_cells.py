"""Which cells `benchmarks.asyfunc_cluster` simulates, and what lies between its nodes."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.asyfunc_cluster import (
    ABLATIONS,
    AS_PRINTED,
    BASELINES,
    READINGS,
    SERIAL,
    Cell,
    Outcome,
    Row,
    cells_of,
    chosen_of,
    figures_of,
    hours_of,
    read_model,
    results_of,
    sweeps_of,
)

VGG16 = Path(__file__).parents[3] / "profiles" / "vgg16.json"
HOUR_S = 3600.0


def test_hours_close_every_serial_fraction_objective_and_weight_mode() -> None:
    cells = hours_of(VGG16)
    found = {(cell.serial, cell.slo, cell.mode) for cell in cells}
    assert found == {(serial, slo, mode) for serial in SERIAL for slo in (1.0, 1.5) for mode in ("private", "shared")}
    assert len(cells) == len(found)
    assert {(cell.duration_s, cell.kappa, cell.readings) for cell in cells} == {(HOUR_S, None, False)}


def test_the_usual_hours_are_those_of_a_run_with_sweeps() -> None:
    usual = [cell for cell in cells_of(VGG16, quick=False, readings=True) if cell.duration_s == HOUR_S]
    assert usual == hours_of(VGG16)[:2]


def test_hours_can_be_chosen_from() -> None:
    cells = hours_of(VGG16)
    assert chosen_of(cells, (), (), ()) == cells
    chosen = chosen_of(cells, (0.02, 0.1), (1.0,), ("shared",))
    assert [(cell.serial, cell.slo, cell.mode) for cell in chosen] == [(0.02, 1.0, "shared"), (0.1, 1.0, "shared")]


def test_sweeps_and_readings_are_what_is_around_the_usual_hour() -> None:
    every = cells_of(VGG16, quick=False, readings=True)
    assert every == hours_of(VGG16)[:2] + sweeps_of(VGG16)
    assert [cell for cell in every if cell.readings] == [replace(every[0], duration_s=900.0, readings=True)]


def test_readings_have_a_result_that_hours_leave_alone() -> None:
    hours, sweeps = ([outcome_of(cell) for cell in cells] for cells in (hours_of(VGG16), sweeps_of(VGG16)))
    assert set(results_of(hours)) == {"asyfunc_cluster"}
    assert set(results_of(sweeps)) == {"asyfunc_readings"}
    both = results_of([*hours, *sweeps])
    assert both == results_of(hours) | results_of(sweeps)
    keys = [figure.key for figure in both["asyfunc_readings"]]
    for name in READINGS:
        assert sum(key.endswith(f"15 min: with {name}") for key in keys) == 1
    for kappa in (0.1, 1.0, 10.0):
        assert any(f"κ = {kappa:g}, 15 min" in key for key in keys)


def test_a_shadow_on_another_node_has_a_price() -> None:
    """10 Gbit/s, 0.2 ms there and back, on top of what a hand-over takes within a node: 0.1 ms, and 0.8 ms/MB."""
    model = read_model(VGG16, 0.05)
    near, far = model, model.over_network()
    assert far.transfer_fixed_s - near.transfer_fixed_s == pytest.approx(1e-4)
    assert far.transfer_seconds_per_byte - near.transfer_seconds_per_byte == pytest.approx(8e-10)


def outcome_of(cell: Cell) -> Outcome:
    """Every policy did the same."""
    rows = {
        name: Row(name, 0.0, 1.0, 1.0, 1.0, 1, 7, 3, 1.0, 1.0, 1.0, "adaptive")
        for name in (*ABLATIONS, *BASELINES, AS_PRINTED, "opt", *READINGS)
    }
    return Outcome(cell, "vgg16@1", 0.3, 200.0, 12, "16 cores", "extrapolated", rows)


def test_figures_name_the_network_and_count_shadows_elsewhere() -> None:
    outcome = outcome_of(hours_of(VGG16)[0])
    figures = figures_of(outcome)
    assert all("10 Gbit/s and 0.2 ms between them" in figure.detail for figure in figures)
    assert "7 Shadows, 3 asked for on another node" in figures[-1].unit
    assert Outcome.from_json(outcome.cell, outcome.to_json()) == outcome
