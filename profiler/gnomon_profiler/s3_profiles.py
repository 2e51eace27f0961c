"""Profiles beside the models of a bucket: put when they are measured, fetched with the model by every machine that opens it.

    s3://BUCKET/PREFIX/profiles/NAME@VERSION/MACHINE.json ─▶ profiles/NAME@VERSION/MACHINE.json in the folder of what was fetched
                                                             .MACHINE.json.tag beside it: the ETag of the object that it is of

A profile may be measured anew, so unlike a model's files it changes; a listing says which have.
"""

from __future__ import annotations

import hashlib
import logging
import re
from pathlib import Path

from gnomon_core.errors import GnomonError
from gnomon_profiler.bucket import Bucket
from gnomon_profiler.objects import ObjectFolder

_PROFILES = "profiles/"
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}\.json")
_LOG = logging.getLogger(__name__)


class FetchedProfiles:
    """Those of a bucket, in a folder."""

    def __init__(self, bucket: Bucket, folder: ObjectFolder) -> None:
        self._bucket, self._folder = bucket, folder

    def fetch(self, name: str, version: str) -> None:
        """Bring those of a model that are new, or measured anew. Where they may not be read it is served without them."""
        try:
            self._fetch(f"{name}@{version}")
        except GnomonError as error:
            _LOG.warning("what was measured of %s@%s is not fetched: %s", name, version, error)

    def _fetch(self, model: str) -> None:
        begin = f"{_PROFILES}{model}/"
        for key, tag in self._bucket.tags(begin).items():
            file = key.removeprefix(begin)
            if not _FILE.fullmatch(file):
                continue
            path = self._folder.root / _PROFILES / model / file
            if path.is_file() and _read(_tag_of(path)) == tag:
                continue
            found = self._bucket.read(key)
            if found is not None:
                with self._folder.writing():
                    self._folder.publish(found[0], path)
                    self._folder.publish(found[1].encode(), _tag_of(path))

    def put(self, model: str, path: Path) -> None:
        """Keep a profile of NAME@VERSION under the name of its file.

        Raises:
            GnomonError: 503 `repository_unreachable`.

        """
        data = path.read_bytes()
        self._bucket.put_object(f"{_PROFILES}{model}/{path.name}", data, hashlib.sha256(data).hexdigest())


def _tag_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.tag")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
