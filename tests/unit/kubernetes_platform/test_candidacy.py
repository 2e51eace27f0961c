"""A candidacy takes the Lease, says so by its address, and gives the Lease back when it ends."""

from __future__ import annotations

import random
from typing import Any

from gnomon_core.clock import WallClock
from gnomon_platforms.kubernetes.lease import ADDRESS_ANNOTATION, Candidacy, Tenure
from tests.unit.kubernetes_platform.elections import LEASE, Leases


def candidacy(leases: Leases, gone: list[str]) -> Candidacy:
    api: Any = leases
    return Candidacy(api, LEASE, WallClock(), random.Random(1), counts_from=lambda: 41, tenure=Tenure(gone.append))


async def test_a_candidacy_leads_with_its_address_and_releases_the_lease_for_the_next() -> None:
    leases, gone = Leases(), list[str]()
    first, second = candidacy(leases, gone), candidacy(leases, gone)
    assert (first.leads, first.epoch) == (False, 1)
    await first.start("http://10.0.0.1:8080")
    await second.start()
    assert (first.leads, second.leads) == (True, False)
    assert first.epoch == 42
    assert leases.document is not None
    assert leases.document["metadata"]["annotations"][ADDRESS_ANNOTATION] == "http://10.0.0.1:8080"
    await first.stop()
    assert (first.leads, leases.document["spec"]["holderIdentity"]) == (False, "")
    await second.leader.attempt()
    assert (second.leads, second.epoch) == (True, 43)
    await second.stop()
    assert gone == []


async def test_a_renewal_in_flight_does_not_keep_the_lease_from_being_released() -> None:
    leases = Leases()
    first = candidacy(leases, [])
    await first.start("http://10.0.0.1:8080")
    # The API server has carried out a renewal whose answer nobody waited for: our copy of the Lease is one version behind.
    assert leases.document is not None
    leases.version += 1
    leases.document["metadata"]["resourceVersion"] = str(leases.version)
    await first.stop()
    assert leases.document["spec"]["holderIdentity"] == ""
