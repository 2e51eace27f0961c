"""One Lease, and the machine of those who stand for it."""

from __future__ import annotations

import pytest

from tests.unit.kubernetes_platform.elections import Leases, Machine


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def leases() -> Leases:
    return Leases()
