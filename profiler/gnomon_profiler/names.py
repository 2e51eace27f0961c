"""The catalog's names, without what it takes to load them."""

from __future__ import annotations

from collections.abc import Mapping

EFFICIENTNET_LITE: Mapping[str, int] = {"efficientnet-lite0": 224, "efficientnet-lite1": 240, "efficientnet-lite2": 260}
"""The pretrained models, and the side of the square image that each takes."""
TORCHVISION_PREFIX = "torchvision:"
ULTRALYTICS_PREFIX = "ultralytics:"
"""Its packages come with the extra `yolo` alone: their licence is the AGPL."""
_PREFIXES = (TORCHVISION_PREFIX, ULTRALYTICS_PREFIX)


def known_names() -> tuple[str, ...]:
    """What can be asked for."""
    return (*EFFICIENTNET_LITE, *(f"{prefix}NAME" for prefix in _PREFIXES))


def in_catalog(name: str) -> bool:
    """Whether a name is one of the catalog's; a package's own list is asked only when the model is loaded."""
    return name in EFFICIENTNET_LITE or any(name.startswith(prefix) and len(name) > len(prefix) for prefix in _PREFIXES)
