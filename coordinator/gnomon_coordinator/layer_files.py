"""The layer blocks of models, which say how large a pair's buffers have to be."""

from __future__ import annotations

import json
from pathlib import Path

from gnomon_coordinator.fields import BadMessageError
from gnomon_core.blocks import Layers

MAX_LAYERS_KEPT = 64
MAX_LAYERS_BYTES = 64 * 2**20


class LayerFiles:
    """The blocks of models by their files, which never change once they are in a model repository."""

    def __init__(self) -> None:
        self._layers: dict[str, Layers] = {}

    def read(self, path: str) -> Layers:
        """The blocks in this file.

        Raises:
            BadMessageError: it holds none, or is larger than any.
            OSError: it cannot be read.

        """
        if path not in self._layers:
            if Path(path).stat().st_size > MAX_LAYERS_BYTES:
                raise BadMessageError("the layers' file is too large")
            try:
                layers = Layers.from_json(json.loads(Path(path).read_bytes()))
            except (ValueError, AttributeError, RecursionError) as error:
                raise BadMessageError(f"the layers cannot be read: {error}") from None
            while len(self._layers) >= MAX_LAYERS_KEPT:
                del self._layers[next(iter(self._layers))]
            self._layers[path] = layers
        return self._layers[path]
