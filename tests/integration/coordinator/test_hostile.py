"""Noise on the sockets. The long form is `python -m tests.integration.coordinator.hostile 100000`."""

import pytest

from tests.integration.coordinator.hostile import attack


@pytest.mark.parametrize("seed", [1, 2])
def test_noise_from_instances_harms_nobody(seed: int) -> None:
    outcome = attack(1500, seed)
    assert outcome.worst_s < 10.0  # it answers; how soon is the machine's affair
    assert outcome.descriptors <= 4
