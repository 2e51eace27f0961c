"""`gnomon/blocks` and `gnomon/reading`: the paper as printed, or read otherwise, by a function's annotations."""

import dataclasses

import pytest

from gnomon_autoscaler.policies.asyfunc import ablated, asyfunc
from gnomon_autoscaler.policies.asyfunc.options import READINGS, Options, asyfunc_options
from gnomon_autoscaler.testing import Timeline
from gnomon_core.errors import GnomonError
from gnomon_core.scaling import CreateShadow
from gnomon_core.settings import READINGS as NAMES
from gnomon_core.settings import Settings, read_settings
from tests.made_up_models import BlockPlan, made_up_profile
from tests.refusals import refused
from tests.timelines import play

MB = 10**6
# The first and the last block have two fifths of the work and few weights each, the one between them nearly all weights.
SCATTERED = made_up_profile(
    (BlockPlan(0.4, 10 * MB), BlockPlan(0.2, 1000 * MB), BlockPlan(0.4, 10 * MB)),
    tuple(0.1 * size for size in range(1, 9)),
    gmacs=4.0,
    overhead_bytes=100 * MB,
)
ANNOTATIONS = {"gnomon/autoscaler": "asyfunc", "gnomon/slo-ms": "1000", "gnomon/max-cores": "1", "gnomon/kappa": "1"}


def annotated(**more: str) -> Settings:
    return read_settings({}, ANNOTATIONS | {f"gnomon/{name}": value for name, value in more.items()})


def blocks_in_a_burst(settings: Settings) -> tuple[int, ...]:
    """What the first Shadow of a burst holds."""
    line = Timeline(settings, nodes=(("n1", 8),), start_s=0.5, profile=SCATTERED)
    play(line, 2, rps=16.0)
    created = [action for _, decision in line.decisions for action in decision.actions if isinstance(action, CreateShadow)]
    return created[0].pair.blocks


def test_a_burst_s_shadow_holds_the_best_blocks_or_neighbours() -> None:
    assert blocks_in_a_burst(annotated()) == (0, 2)
    assert blocks_in_a_burst(annotated(blocks="ratio")) == (0, 2)
    assert blocks_in_a_burst(annotated(blocks="contiguous")) == (0,)


def test_without_annotations_everything_is_as_it_was_settled() -> None:
    assert asyfunc_options(annotated(kappa="1")) == Options()


@pytest.mark.parametrize("name", NAMES)
def test_each_reading_changes_one_thing(name: str) -> None:
    before, after = (dataclasses.asdict(asyfunc(settings).options) for settings in (annotated(), annotated(reading=name)))
    changed = {field: value for field, value in after.items() if value != before[field]}
    assert changed == READINGS[name]
    assert len(changed) == 1


def test_every_name_that_is_allowed_has_a_meaning() -> None:
    assert set(NAMES) == set(READINGS)


def test_readings_go_together_in_any_order_and_hold_for_ablations_too() -> None:
    settings = annotated(autoscaler="asyfunc-", reading="objective, gain")
    assert settings.readings == ("gain", "objective")
    assert settings == annotated(autoscaler="asyfunc-", reading="gain,objective,gain")
    assert (ablated(settings).options.gain, ablated(settings).options.objective) == (True, True)


@pytest.mark.parametrize("value", ["", "gain,", "gian", "gain objective", "backlog"])
def test_an_unknown_reading_is_refused_with_the_known_ones(value: str) -> None:
    with pytest.raises(GnomonError, match="gnomon/reading") as refused:
        annotated(reading=value)
    assert refused.value.status == 400
    assert all(name in refused.value.hint for name in NAMES)


def test_an_unknown_choice_of_blocks_is_refused() -> None:
    with refused(match="gnomon/blocks is 'scattered'", hint="ratio or contiguous"):
        annotated(blocks="scattered")
