"""The live comparison of lent cores: the same bursts for every policy, and figures that stand beside each other."""

from benchmarks.lending import FUNCTIONS, POLICIES, Outcome, arrivals, figures_of
from gnomon_core.settings import read_settings


def test_each_function_has_bursts_of_its_own_and_every_policy_the_same() -> None:
    left, right = (arrivals(name, 50.0, 600.0, 1) for name in FUNCTIONS)
    assert left == arrivals("left", 50.0, 600.0, 1) != right
    assert left != arrivals("left", 50.0, 600.0, 2)
    assert 0.1 * 60 < len(left) / 600 < 0.35 * 60, "a fifth of the time at 60 requests a second"


def test_policies_differ_in_lending_alone() -> None:
    lends, lends_not = (read_settings({}, POLICIES[name]) for name in ("gnomon", "gnomon without lending"))
    assert (lends.autoscaler, lends.without) == ("gnomon", ())
    assert (lends_not.autoscaler, lends_not.without) == ("gnomon", ("lending",))


def test_no_figure_has_a_goal() -> None:
    outcome = Outcome(late=0.01, p50_s=0.02, p95_s=0.05, cpu_s=9.0, memory_bytes=2e8, lag_p99_s=0.003)
    figures = figures_of({"gnomon": [outcome, outcome], "kpa": [outcome]})
    assert {figure.met for figure in figures} == {""}
    values = {figure.key: figure.value for figure in figures}
    assert (values["gnomon: late"], values["gnomon: p95"], values["kpa: CPU"], values["kpa: memory"]) == (1.0, 50.0, 9.0, 0.2)
