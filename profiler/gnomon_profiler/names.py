"""The catalog's names, without what it takes to load them."""

from __future__ import annotations

from collections.abc import Mapping

EFFICIENTNET_LITE: Mapping[str, int] = {"efficientnet-lite0": 224, "efficientnet-lite1": 240, "efficientnet-lite2": 260}
"""The pretrained models, and the side of the square image that each takes."""
TORCHVISION_PREFIX = "torchvision:"


def known_names() -> tuple[str, ...]:
    """What can be asked for."""
    return (*EFFICIENTNET_LITE, f"{TORCHVISION_PREFIX}NAME")


def in_catalog(name: str) -> bool:
    """Whether a name is one of the catalog's; torchvision's own list is asked only when the model is loaded."""
    return name in EFFICIENTNET_LITE or (name.startswith(TORCHVISION_PREFIX) and len(name) > len(TORCHVISION_PREFIX))
