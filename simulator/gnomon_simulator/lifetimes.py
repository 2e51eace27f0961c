"""How long a simulated instance existed, with how many cores, and what each of its calls cost: what a user pays for."""

from __future__ import annotations

from dataclasses import dataclass

from gnomon_core.fleet import Instance
from gnomon_core.memory_sizes import MEGABYTE
from gnomon_core.prices import LAMBDA_X86
from gnomon_simulator.profiles import Factor, Profile


@dataclass(slots=True)
class Lifetime:
    """An instance from its creation to its end; what it costs adds up in `core_s` as its cores change.

    `busy_s` is how long a Shadow computed; a Body's dispatcher knows that of Bodies. A Shadow that becomes a Body begins a second
    one, of the same id. Where memory is sold, as on Lambda, each batch is a call that is paid for, and so is the start.
    """

    instance: Instance
    profile: Profile
    factor: Factor | None
    cores_since_s: float
    core_s: float = 0.0
    busy_s: float = 0.0
    gone_s: float | None = None
    calls: int = 0
    calls_usd: float = 0.0
    was_of: str | None = None
    """The Body that it works for until it is one itself."""

    def account(self, now_s: float) -> None:
        """Add what it has cost since it last changed."""
        self.core_s += self.instance.cores * (now_s - self.cores_since_s)
        self.cores_since_s = now_s

    def call(self, seconds: float) -> None:
        """It was invoked for so long; of no account where instances are held and not called."""
        if self.profile.model is not None and self.profile.model.memories.seconds:
            self.calls += 1
            self.calls_usd += LAMBDA_X86.invoke_usd(seconds, self.instance.memory_bytes // MEGABYTE)
