"""What a function's annotations say of readings of the paper holds in the simulator as it does live."""

from gnomon_core.scaling import CreateShadow
from gnomon_core.settings import read_settings
from gnomon_simulator.arrivals import constant
from gnomon_simulator.profiles import modelled
from gnomon_simulator.results import FunctionResult
from gnomon_simulator.simulated_platform import NodePlan
from gnomon_simulator.simulation import FunctionPlan, simulate
from tests.unit.autoscaler.test_asyfunc_readings import ANNOTATIONS, SCATTERED

# A Body carries 10 rps. In the burst more come than it carries, and its queue goes on when it is over.
ARRIVALS = [
    *constant(6.0, 20.0),
    *(20.0 + at_s for at_s in constant(30.0, 2.0)),
    *(22.0 + at_s for at_s in constant(6.0, 12.0)),
]


def run(**more: str) -> FunctionResult:
    settings = read_settings({}, ANNOTATIONS | {f"gnomon/{name}": value for name, value in more.items()})
    return simulate([FunctionPlan("f", settings, modelled(SCATTERED), ARRIVALS, warm=1)], [NodePlan("n1", 2)])["f"]


def blocks(result: FunctionResult) -> tuple[int, ...]:
    made = [action for record in result.decisions for action in record.actions if isinstance(action, CreateShadow)]
    return made[0].pair.blocks


def test_a_shadow_holds_the_best_blocks_or_neighbours() -> None:
    assert blocks(run()) == (0, 2)
    assert blocks(run(blocks="contiguous")) == (0,)


def test_a_reading_changes_what_is_decided() -> None:
    # R_burst by arrivals alone forgets what waits: the Shadow goes while the queue of the burst still stands.
    assert run(reading="arrivals").cost.shadow_s < run().cost.shadow_s
