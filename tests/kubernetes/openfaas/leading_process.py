"""A process that stands for a Lease, and writes as often as it can while it leads: `KUBECONFIG NAMESPACE IDENTITY`."""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path
from typing import Any

from gnomon_core.clock import WallClock
from gnomon_core.errors import GnomonError
from gnomon_platforms.kubernetes.api import connect
from gnomon_platforms.kubernetes.leader import Leader, Tenure, Watchdog
from gnomon_platforms.kubernetes.resources import LEASES, Resource
from gnomon_platforms.kubernetes.terms import LeaseTiming
from gnomon_platforms.kubernetes.writes import Patch, Target, Write, Writer

CONFIG_MAPS = Resource("v1", "configmaps", "ConfigMap")
TIMING = LeaseTiming(duration_s=3, renew_deadline_s=2.0, retry_s=0.3)


async def main(kubeconfig: Path, namespace: str, identity: str) -> None:
    api, clock, chance = connect(kubeconfig), WallClock(), random.Random(identity)
    tenure = Tenure()
    Watchdog(tenure).start()
    leader = Leader(Writer(api, clock, chance), Target(LEASES, namespace, "gnomon"), identity, tenure, clock, timing=TIMING)
    standing = asyncio.create_task(leader.run())
    await leader.leading.wait()
    fenced = Writer(api, clock, chance, tenure.check)
    written = Target(CONFIG_MAPS, namespace, "written")

    def decide(seen: dict[str, Any] | None) -> Write | None:
        count = int((seen or {}).get("data", {}).get("count", 0))
        return Patch({"data": {"epoch": str(tenure.epoch), "count": str(count + 1)}})

    while not standing.done():
        try:
            await fenced.settle(written, decide, "write")
        except GnomonError as error:
            sys.stderr.write(f"{error}\n")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), *sys.argv[2:]))
