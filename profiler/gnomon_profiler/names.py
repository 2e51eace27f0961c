"""The catalog's names, without what it takes to load them."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path

from gnomon_core.errors import GnomonError, not_found
from gnomon_core.nearest_names import did_you_mean

EFFICIENTNET_LITE: Mapping[str, int] = {"efficientnet-lite0": 224, "efficientnet-lite1": 240, "efficientnet-lite2": 260}
"""The pretrained models, and the side of the square image that each takes."""
TORCHVISION_PREFIX = "torchvision:"
ULTRALYTICS_PREFIX = "ultralytics:"
"""Prefix of Ultralytics models. Their packages come with the extra `yolo` alone: their licence is the AGPL."""
_PREFIXES = (TORCHVISION_PREFIX, ULTRALYTICS_PREFIX)


def known_names() -> tuple[str, ...]:
    """The names of the catalog; a prefix stands for all names that begin with it."""
    return (*EFFICIENTNET_LITE, *(f"{prefix}NAME" for prefix in _PREFIXES))


def in_catalog(name: str) -> bool:
    """True if a name is one of the catalog's; a package's own list is read only when the model is loaded."""
    return name in EFFICIENTNET_LITE or any(name.startswith(prefix) and len(name) > len(prefix) for prefix in _PREFIXES)


def meant(name: str, source: str) -> str:
    """The full source of a model called `name`, if the short form is unambiguous; else the source unchanged.

    Example: "resnet50", or "torchvision" of what is called resnet50, is "torchvision:resnet50".
    """
    if f"{source}:" in _PREFIXES:
        return name if name.startswith(f"{source}:") else f"{source}:{name}"
    return f"{TORCHVISION_PREFIX}{source}" if _is_architecture(source) else source


def not_in_catalog(name: str) -> GnomonError:
    """404, with the closest known name if there is one, and the catalog's names."""
    hint = f"{did_you_mean(name, known_names())} The catalog has: {', '.join(known_names())}.".strip()
    if _is_architecture(name):
        hint = f"torchvision's is called {TORCHVISION_PREFIX}{name}: `gnomon models add {TORCHVISION_PREFIX}{name}`. {hint}"
    hint += " One of a hub is added by its address: --from https://huggingface.co/ORGANISATION/NAME."
    return not_found("model_not_found", f"The catalog has no model {name[:200]!r}.", hint)


def _is_architecture(name: str) -> bool:
    """True if torchvision is there and has a function of this name among its models. Importing it would take seconds."""
    torchvision_spec = importlib.util.find_spec("torchvision")
    if torchvision_spec is None or torchvision_spec.origin is None or not re.fullmatch(r"[a-z][a-z0-9_]{0,62}", name):
        return False
    definition = re.compile(rf"^def {name}\(", re.MULTILINE)
    files = (Path(torchvision_spec.origin).parent / "models").rglob("*.py")
    return any(definition.search(file.read_text(encoding="utf-8")) for file in files if not file.name.startswith("_"))
