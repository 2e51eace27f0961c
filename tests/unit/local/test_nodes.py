import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionSpec, read_deployment
from gnomon_platforms.claims import claimed_cores
from gnomon_platforms.local.nodes import LocalNode

GIB = 2**30


def spec(**fields: object) -> FunctionSpec:
    return read_deployment({"service": "f", "image": "i", **fields})


@pytest.mark.parametrize(
    ("fields", "cores", "claimed"),
    [
        ({}, 1, 0.1),
        ({"limits": {"cpu": "100m"}}, 1, 0.1),
        ({"limits": {"cpu": "2"}}, 1, 2.0),
        ({"limits": {"cpu": "2"}, "requests": {"cpu": "250m"}}, 1, 0.25),
        ({"annotations": {"gnomon/model": "m"}}, 3, 3.0),
        ({"annotations": {"gnomon/cores": "2"}}, 2, 2.0),
        ({"annotations": {"gnomon/model": "m"}, "requests": {"cpu": "500m"}}, 4, 0.5),
    ],
)
def test_what_an_instance_claims(fields: dict[str, object], cores: int, claimed: float) -> None:
    assert claimed_cores(spec(**fields), cores) == claimed


def test_instances_are_pinned_to_the_least_loaded_cpus() -> None:
    node = LocalNode((0, 1, 2, 3), 4, GIB)
    assert node.claim("a", 2.0, 0, 2).cpus == (0, 1)
    assert node.claim("b", 1.0, 0, 1).cpus == (2,)
    assert node.claim("c", 0.5, 0, 1).cpus == (3,)
    assert node.claim("d", 0.1, 0, 1).cpus == (3,)
    node.release("a")
    assert node.claim("e", 1.0, 0, 1).cpus == (0,)


def test_fractions_of_a_core_share_it_until_it_is_full() -> None:
    node = LocalNode((0,), 1, GIB)
    for number in range(10):
        node.claim(str(number), 0.1, 0, 1)
    assert node.value().free_cores == 0
    with pytest.raises(GnomonError) as refused:
        node.claim("one too many", 0.1, 0, 1)
    assert (refused.value.status, refused.value.code) == (503, "no_capacity")


def test_memory_is_given_once() -> None:
    node = LocalNode((0,), 1, GIB)
    node.claim("a", 0.1, 700 * 2**20, 1)
    with pytest.raises(GnomonError, match=r"0\.1 cores and 400 MiB; node .* has 0\.9 cores and 324 MiB free"):
        node.claim("b", 0.1, 400 * 2**20, 1)
    node.release("a")
    node.claim("b", 0.1, 400 * 2**20, 1)


def test_a_claim_that_is_changed_gives_back_what_it_had_and_one_that_is_refused_keeps_it() -> None:
    node = LocalNode((0, 1, 2, 3), 4, GIB)
    node.claim("a", 3.0, 0, 3)
    assert node.claim("a", 4.0, 0, 4).cpus == (0, 1, 2, 3)
    with pytest.raises(GnomonError):
        node.claim("a", 5.0, 0, 5)
    assert node.claimed("a").cores == 4.0


def test_a_node_that_gives_away_more_than_it_has_shares_its_cpus() -> None:
    node = LocalNode((0, 1), 8, GIB)
    cpus = [node.claim(str(number), 1.0, 0, 1).cpus for number in range(8)]
    assert sorted(cpus) == [(0,)] * 4 + [(1,)] * 4
