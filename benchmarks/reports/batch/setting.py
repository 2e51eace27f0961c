"""The applications of the report, and the models that stand for the paper's.

The paper's five applications run in TensorFlow 1 and MXNet on Lambda; here they are layer programs on this machine's cores, whose
share is that of Lambda's memory: 1,769 MB are one vCPU. MoBiNet, Inception-v4 and ResNet-v2 are published for other frameworks
only; the nearest of torchvision stands for each.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

MB_PER_CPU = 1769.0
LARGEST_MB = 3008
PAPER_MB = (1536, 3008)


@dataclass(frozen=True, slots=True)
class Application:
    """An application of the paper and its stand-in model; `profile` is a published profile, used instead of measuring."""

    name: str
    model: str
    profile: str
    stands_in: bool


APPLICATIONS = {
    setting.name: setting
    for setting in (
        Application("MoBiNet", "torchvision:mobilenet_v2", "efficientnet-lite0", stands_in=True),
        Application("ResNet-18", "torchvision:resnet18", "resnet50", stands_in=False),
        Application("ResNet-50", "torchvision:resnet50", "resnet50", stands_in=False),
        Application("Inception-v4", "torchvision:inception_v3", "inception_v3", stands_in=True),
        Application("ResNet-v2", "torchvision:resnet101", "resnet101", stands_in=True),
    )
}


@dataclass(frozen=True, slots=True)
class Setting:
    """The extent of the measurements. `batches` and `repeats` are of models; `plan_batches`, memories and timeouts of plans."""

    quick: bool
    batches: tuple[int, ...]
    repeats: int
    memories_mb: tuple[int, ...]
    plan_batches: tuple[int, ...]
    timeouts_s: tuple[float, ...]
    hours: int
    requests: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


THOROUGH = Setting(
    quick=False,
    batches=(1, 2, 4, 8, 14, 20),
    repeats=6,
    memories_mb=tuple(range(1280, LARGEST_MB + 1, 64)),
    plan_batches=tuple(range(1, 21)),
    timeouts_s=tuple(number / 100.0 for number in range(1, 50)),
    hours=23,
    requests=4_000_000,
)
# Service times are those of the published profiles, which end at batches of 8.
QUICK = Setting(
    quick=True,
    batches=(1, 2, 4, 8),
    repeats=0,
    memories_mb=(1280, 1792, 2304, LARGEST_MB),
    plan_batches=(1, 2, 4, 8),
    timeouts_s=(0.02, 0.1, 0.4),
    hours=3,
    requests=20_000,
)
