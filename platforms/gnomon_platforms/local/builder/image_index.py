"""Which content an image's name stands for: a JSON file, replaced as a whole, so a SIGKILL leaves the old or the new one."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Collection, Mapping
from pathlib import Path

VERSION = 1


class ImageIndex:
    """Image names and content ids. A `put` that has returned is on disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._images: dict[str, str] = json.loads(path.read_text())["images"] if path.exists() else {}

    def get(self, image: str) -> str | None:
        return self._images.get(image)

    def images(self) -> Mapping[str, str]:
        """Every image with its content."""
        return dict(self._images)

    def put(self, image: str, content_id: str) -> None:
        """Let an image stand for this content from now on."""
        with self._lock:
            self._replace({**self._images, image: content_id})

    def remove(self, images: Collection[str]) -> None:
        """Forget images."""
        with self._lock:
            self._replace({image: content for image, content in self._images.items() if image not in images})

    def _replace(self, images: dict[str, str]) -> None:
        staged = self._path.with_suffix(".new")
        with staged.open("w") as file:
            json.dump({"version": VERSION, "images": images}, file, indent=1, sort_keys=True)
            file.flush()
            os.fsync(file.fileno())
        staged.replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        self._images = images
