"""The operator's options of the platform `openfaas`."""

from __future__ import annotations

from dataclasses import dataclass, field

from gnomon_platforms.kubernetes.objects.pod_template import PodOptions
from gnomon_platforms.nodes.coordinators import NodeOptions
from gnomon_platforms.nodes.models import ServedModels

ADOPTING_S = 60.0
START_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class OpenFaasOptions:
    """The operator's options.

    `namespace` None means every namespace. With `stored`, a function store creates the Deployments: a missing one was removed,
    and an instance that was requested just before does not create it again.
    """

    namespace: str | None = None
    pods: PodOptions = field(default_factory=PodOptions)
    start_timeout_s: float = START_TIMEOUT_S
    adopting_s: float = ADOPTING_S
    stored: bool = False
    models: ServedModels | None = None
    """The models that functions may name; without them policies have no profiles."""
    nodes: NodeOptions | None = None
    """The nodes' coordinators; without them, or without models, no Body has a Shadow."""
