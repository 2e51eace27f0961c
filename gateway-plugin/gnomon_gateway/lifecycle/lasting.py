"""What is different where instances outlive the gateway (`gnomon_core.lasting`): found again, or others' to count."""

from __future__ import annotations

from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance
from gnomon_core.lasting import Lasting
from gnomon_core.seams import Platform
from gnomon_gateway.lifecycle.deployed import Deployed


def outlive_us(platform: Platform) -> bool:
    """Whether instances run on when the gateway stops."""
    return isinstance(platform, Lasting)


def left_over(platform: Platform, deployed: Deployed) -> tuple[Instance, ...]:
    """The instances of a function that an earlier gateway has left, which are ours from now on, with those that we know."""
    if not isinstance(platform, Lasting):
        return ()
    platform.adopt(deployed.spec, deployed.version)
    return platform.instances(deployed.name)


def refuse_hindered(platform: Platform, function: str) -> None:
    """Raise why the function's instances are not ours to change now, if they are not.

    Raises:
        GnomonError: 409 `foreign_autoscaler`.

    """
    refusal: GnomonError | None = platform.hindrance(function) if isinstance(platform, Lasting) else None
    if refusal is not None:
        raise refusal
