"""Which CPUs a Shadow gets."""

from gnomon_coordinator.node.pool import Cpus


def test_cpus_with_the_fewest_shadows_are_claimed() -> None:
    cpus = Cpus([0, 1, 2, 3])

    assert cpus.claim("s1", 2) == (0, 1)
    assert cpus.claim("s2", 2) == (2, 3)
    assert cpus.claim("s3", 1) == (0,)
    assert cpus.claimed == 5
    cpus.release("s1")
    assert cpus.claim("s4", 2) == (0, 1)
    assert cpus.claimed == 5


def test_second_claim_replaces_the_first() -> None:
    cpus = Cpus([4, 7])

    assert cpus.claim("s1", 1) == (4,)
    assert cpus.claim("s1", 2) == (4, 7)
    assert cpus.claim("s2", 3) == (4, 7)
    assert cpus.claimed == 4
    cpus.release("s2")
    cpus.release("s2")
    assert cpus.claimed == 2
