"""The networks of detection models: what comes before boxes are decoded, compared and thrown away.

Post-processing has sizes that depend on values, so it can be neither a layer program nor split by samples; a handler does it.
What remains, backbone and head, is nearly all of the work: one map of scores and one of offsets, or one tensor for each scale.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gnomon_core.errors import GnomonError


def is_single_shot(module: nn.Module) -> bool:
    """Whether a torchvision detector is a backbone and a head, without proposals between them."""
    return all(hasattr(module, name) for name in ("backbone", "head", "transform")) and not hasattr(module, "roi_heads")


class SingleShot(nn.Module):
    """Backbone and head of SSD, SSDlite, RetinaNet or FCOS: image batches of one size in, the head's tensors by name out."""

    def __init__(self, detector: Any) -> None:
        super().__init__()
        self.backbone, self.head = detector.backbone, detector.head
        self.image_size = square_size(detector.transform)

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        features = self.backbone(image)
        answer: dict[str, Tensor] = self.head(list(features.values()) if isinstance(features, dict) else [features])
        return answer


def square_size(transform: Any) -> int:
    """The side of the images that a detector is built for; of its smallest side where it takes several."""
    fixed = transform.fixed_size
    return int(fixed[0] if fixed else min(transform.min_size))


class UltralyticsNetwork(nn.Module):
    """The layers of an Ultralytics detector with its head's convolutions: for each scale, box distributions and class scores."""

    def __init__(self, detector: Any) -> None:
        super().__init__()
        *layers, head = detector.model
        self.layers = nn.ModuleList(layers)
        self.boxes, self.classes = head.cv2, head.cv3
        self._sources = [layer.f for layer in layers]
        self._features = list(head.f)

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        made: list[Any] = []
        value: Any = image
        for layer, source in zip(self.layers, self._sources, strict=True):
            if isinstance(source, list):
                value = [value if number == -1 else made[number] for number in source]
            elif source != -1:
                value = made[source]
            value = layer(value)
            made.append(value)
        features = [made[number] for number in self._features]
        return {
            f"scale_{number}": torch.cat([boxes(feature), classes(feature)], 1)
            for number, (feature, boxes, classes) in enumerate(zip(features, self.boxes, self.classes, strict=True))
        }


def refuse_proposals(name: str) -> GnomonError:
    """422: between the stages of such a detector are sizes that depend on values."""
    return GnomonError(
        422,
        "unsupported_model",
        f"{name} looks at proposals, whose number depends on the image.",
        "Take a single-shot detector: torchvision:ssd300_vgg16, torchvision:ssdlite320_mobilenet_v3_large.",
    )
