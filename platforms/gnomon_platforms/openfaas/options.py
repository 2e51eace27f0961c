"""What the operator says once of the platform `openfaas`."""

from __future__ import annotations

from dataclasses import dataclass, field

from gnomon_platforms.kubernetes.objects.pod_template import PodOptions
from gnomon_platforms.nodes.coordinators import NodeOptions
from gnomon_platforms.nodes.models import ServedModels

ADOPTING_S = 60.0
START_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class OpenFaasOptions:
    """What the operator says once.

    `namespace` None looks after every namespace. With `stored`, a store of functions makes their Deployments: one that is not
    there was removed, and is not made again by an instance that was asked for a moment earlier.
    """

    namespace: str | None = None
    pods: PodOptions = field(default_factory=PodOptions)
    start_timeout_s: float = START_TIMEOUT_S
    adopting_s: float = ADOPTING_S
    stored: bool = False
    models: ServedModels | None = None
    """Those that functions name; without them no policy has a profile to decide by."""
    nodes: NodeOptions | None = None
    """The nodes' coordinators; without them, or without models, no Body has a Shadow."""
