"""Which content an image's name stands for: a JSON file, replaced as a whole, so a SIGKILL leaves the old or the new one."""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Mapping
from pathlib import Path

from gnomon_core.errors import GnomonError
from gnomon_core.whole_files import replace_file

VERSION = 1


class ImageIndex:
    """Image names and content ids. A `put` that has returned is on disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._images = _read(path)

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
        document = {"version": VERSION, "images": images}
        replace_file(self._path, json.dumps(document, indent=1, sort_keys=True), durable=True)
        self._images = images


def _read(path: Path) -> dict[str, str]:
    """The images in a file; none where there is no file.

    Raises:
        GnomonError: 500 `images_unreadable`.

    """
    try:
        images: dict[str, str] = json.loads(path.read_bytes())["images"]
        if all(isinstance(content, str) for content in images.values()):
            return images
        reason = "an image stands for something that is no content"
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
    raise GnomonError(
        500,
        "images_unreadable",
        f"The index of built images in {path} cannot be read: {reason}.",
        "Restore the file, or remove it and build your handlers again.",
    )
