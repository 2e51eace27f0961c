"""A handler that was built: a folder, with an environment that has nothing beside it."""

from __future__ import annotations

import hashlib
from pathlib import Path


class BuiltFolder:
    """Stands for every image: `resolve` gives itself. `site_packages` is what its requirements brought."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder.parent / "environment" / "bin" / "python"
        self.preload: tuple[str, ...] = ()
        self.content_id = hashlib.sha256((folder / "handler.py").read_bytes()).hexdigest()

    def resolve(self, image: str) -> BuiltFolder:
        """What the image stands for."""
        del image
        return self
