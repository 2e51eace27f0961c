"""What an instance takes of its node, on whatever platform counts that.

Cores are claimed as Kubernetes claims them: by the function's CPU request, else its limit; without either, a function that says
its size (a model, or `gnomon/cores`) claims its cores and any other a tenth of one, because most functions wait most of the time.
On one machine a claim that the deployment does not ask for counts only while the instance is in use (`local.nodes`).
"""

from __future__ import annotations

from gnomon_core.blocks import Layers
from gnomon_core.functions import FunctionSpec
from gnomon_core.pairs import Pair
from gnomon_core.profiles import ModelProfile
from gnomon_core.units import parse_cores

SMALL_CLAIM_CORES = 0.1
MODEL_OVERHEAD_BYTES = 96 * 2**20
"""What a model's instance holds besides its weights: activations and the pages it does not share with the zygote."""


def requested_cores(spec: FunctionSpec) -> float | None:
    """The CPU request of the deployment, or its CPU limit where it has no request; None without either."""
    requests = spec.raw.get("requests")
    if isinstance(requests, dict) and requests.get("cpu"):
        return parse_cores(str(requests["cpu"]))
    return spec.cpu_cores


def claimed_cores(spec: FunctionSpec, cores: int) -> float:
    """The cores that an instance of this function takes from its node."""
    requested = requested_cores(spec)
    if requested is not None:
        return requested
    says_its_size = spec.settings.model is not None or "gnomon/cores" in spec.annotations
    return float(cores) if says_its_size else SMALL_CLAIM_CORES


def shadow_bytes(layers: Layers, pair: Pair, profile: ModelProfile | None, weight_mode: str) -> int:
    """What a Shadow takes: what any instance holds, and weights of its own where it does not map those that its Body holds.

    On another node, which the pair names then, nobody holds them for it.
    """
    overhead_bytes = MODEL_OVERHEAD_BYTES if profile is None else profile.overhead_bytes
    mapped = weight_mode == "shared" and pair.node is None
    return overhead_bytes + (0 if mapped else layers.parameter_bytes(pair.blocks))
