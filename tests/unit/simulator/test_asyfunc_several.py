"""`asyfunc` with several Shadows per Body in virtual time: a burst that outlasts what one Shadow carries."""

from collections.abc import Sequence
from dataclasses import replace

from gnomon_core.profiles import Loading, ModelProfile, Network
from gnomon_core.scaling import ChangeShadow, CreateShadow, DestroyShadow
from gnomon_core.settings import ScaleSettings, Settings
from gnomon_simulator.profiles import modelled
from gnomon_simulator.results import FunctionResult
from gnomon_simulator.simulated_platform import NodePlan
from gnomon_simulator.simulation import FunctionPlan, simulate
from tests.made_up_models import BlockPlan, made_up_profile

MB = 10**6
# 0.1 s a sample on one core: 10 rps alone, 20 with one Shadow, 30 with two. A Body takes a minute to load, a Shadow 0.1 s.
MODEL = made_up_profile(
    (BlockPlan(0.5, 20 * MB), BlockPlan(0.5, 80 * MB)),
    tuple(0.1 * size for size in range(1, 9)),
    gmacs=4.0,
    overhead_bytes=100 * MB,
    border_bytes=MB,
)
MODEL = replace(MODEL, loading={"shared": Loading(0.0, 0.0)}, body_start_s=60.0, shadow_start_s=0.1)
CALM = [number / 5 for number in range(50)]
BURST = [10.0 + number / 25 for number in range(250)]
AFTER = [20.0 + number / 5 for number in range(50)]


ONE_NODE = (NodePlan("n1", 4),)


def run(max_shadows: int, nodes: Sequence[NodePlan] = ONE_NODE, model: ModelProfile = MODEL) -> FunctionResult:
    """5 rps, ten seconds of 25, and 5 again, on one node of four cores or on these, one for each instance."""
    settings = Settings(
        autoscaler="asyfunc",
        slo_s=1.0,
        deadline_s=1.0,
        max_batch=8,
        max_cores=1,
        kappa=1.0,
        max_shadows=max_shadows,
        scale=ScaleSettings(min=1, max=1),
    )
    plan = FunctionPlan("f", settings, modelled(model), [*CALM, *BURST, *AFTER], "given", warm=1)
    return simulate([plan], nodes)["f"]


def test_a_burst_that_one_shadow_cannot_carry_is_carried_by_two() -> None:
    one, two = run(1), run(2)
    assert (one.cost.shadows, two.cost.shadows) == (1, 2)
    assert two.violations < one.violations / 4
    actions = [action for record in two.decisions for action in record.actions]
    made = [action for action in actions if isinstance(action, CreateShadow)]
    ended = [action for action in actions if isinstance(action, DestroyShadow)]
    assert len(made) == len(ended) == 2, "and both go when it is over"
    assert len({action.id for action in ended}) == 2
    assert any(isinstance(action, ChangeShadow) for action in actions), "they share anew when the second serves"


def test_the_second_may_be_on_another_node() -> None:
    """n1 has room for the Body and one Shadow. 1 ms and 1 ms/MB each way: 29 rps, where two at home give 30."""
    nodes, priced = (NodePlan("n1", 2), NodePlan("n2", 1)), replace(MODEL, network=Network(0.001, 1e-9))
    one, two = run(1, nodes, priced), run(2, nodes, priced)
    made = [action for record in two.decisions for action in record.actions if isinstance(action, CreateShadow)]
    assert [action.pair.node for action in made] == [None, "n2"]
    assert two.violations < one.violations / 4
    assert run(2, nodes).cost.shadows == 1, "the way there has no price"


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = run(3), run(3)
    assert list(first.requests.finished_s) == list(second.requests.finished_s)
