"""The plain values that the seams carry: what a platform can do and is asked for, what a store keeps, what is built.

They are apart from the Protocols (gnomon_core.seams) that hand them over, so that code which only holds one of these values
need not know who replaces whom.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gnomon_core.functions import FunctionSpec
from gnomon_core.signature import ModelSignature


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a platform can do, so that a policy which needs more is refused when it is chosen and not when it acts."""

    place: bool
    size: bool
    victim: bool
    resize: bool
    pair: bool
    promote: bool = False
    quick_model_starts: bool = False
    """Whether a model's instance starts in milliseconds, so that idle models may scale to zero without being asked to."""


@dataclass(frozen=True, slots=True)
class InstanceRequest:
    """An instance to be made: the function, which version of it, how large, where, and the secrets it may see.

    `memory_mb` is a memory size other than the function's own, for platforms where cores follow from it; others leave it out.
    """

    spec: FunctionSpec
    version: int
    cores: int
    node: str | None
    secrets: Mapping[str, bytes]
    memory_mb: int | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds spent since each instance began (summed, also over those that have ended) and memory held now.

    `cost` is in dollars, for platforms that send a bill for what was used.
    """

    cpu_s: float
    memory_bytes: int
    cost: float = 0.0


@dataclass(frozen=True, slots=True)
class StoredFunction:
    """A function in the store; `version` grows with each change that needs new instances."""

    spec: FunctionSpec
    version: int
    created_at: float
    """Seconds since 1970."""


@dataclass(frozen=True, slots=True)
class StoredNamespace:
    """A namespace that was made by a user. The default one is always there and never stored."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model in the repository: its signature and where its verified files are."""

    name: str
    version: str
    signature: ModelSignature
    program: Path
    weights: Path
    sha256: Mapping[str, str]
    layers: Path | None = None
    """The program's layer blocks; None for a model that was captured without them."""


@dataclass(frozen=True, slots=True)
class Built:
    """An image name and the content it names from now on."""

    image: str
    content_id: str
