"""Which cells `gnomon lambda-profile --grid` measures."""

from __future__ import annotations

import pytest

from gnomon_cli.commands.lambda_profile import grid_of
from gnomon_core.errors import GnomonError
from gnomon_planner.service_time import Measured, fitted


def test_a_grid_is_less_than_three_per_cent_of_the_cells_and_holds_a_model_of_all_of_them() -> None:
    cells = grid_of((128, 3008), (1, 20))
    assert len(cells) < 0.03 * 46 * 20
    assert {(128, 1), (128, 20), (3008, 1), (3008, 20)} <= set(cells)
    assert all((size - 128) % 64 == 0 for size, _ in cells)

    def seconds(size: int, batch: int) -> float:
        return (0.01 + 0.02 * batch) * 1769 / size

    model = fitted([Measured(size, batch, seconds(size, batch)) for size, batch in cells], whole=1769)
    assert model.seconds(960, 11) == pytest.approx(seconds(960, 11), rel=0.01)


def test_too_few_cells_for_a_model_are_refused() -> None:
    with pytest.raises(GnomonError) as refused:
        grid_of((1024, 1152), (1, 4))
    assert refused.value.code == "too_few_cells"
