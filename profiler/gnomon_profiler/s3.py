"""Models in S3, or anything that speaks it, with a folder on this machine for what has been fetched.

    s3://BUCKET/PREFIX/objects/ab/abcdef…                    a file by its SHA-256, which S3 compares when it is put
    s3://BUCKET/PREFIX/models/NAME/VERSION/manifest.json     as in a directory; put last, and only if no other writer was first
    s3://BUCKET/PREFIX/profiles/NAME@VERSION/MACHINE.json    what was measured of it, which comes with the model

A file is hashed while it is fetched and appears in the folder only if it is what the manifest states; the folder is content-
addressed and verified like a directory repository's. `get_blocks` fetches by byte ranges the tensors of some blocks alone: each
has its own SHA-256 in an index that is stored beside the weights.

Profiles beside the models of a bucket: put when they are measured, fetched with the model by every machine that opens it.

    s3://BUCKET/PREFIX/profiles/NAME@VERSION/MACHINE.json ─▶ profiles/NAME@VERSION/MACHINE.json in the folder of what was fetched
                                                             .MACHINE.json.tag beside it: the ETag of the object that it is of

A profile may be measured anew, so unlike a model's files it changes; a listing says which have.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from gnomon_core.blocks import Layers
from gnomon_core.errors import GnomonError
from gnomon_core.interfaces import ModelEntry
from gnomon_profiler.entries import NAME, PROGRAM, VERSION, WEIGHTS, Manifest, corrupt_file, new_manifest, sorted_versions
from gnomon_profiler.layers_file import LAYERS
from gnomon_profiler.objects import Bucket, ObjectFolder
from gnomon_profiler.opening import Opening, takes_its_place
from gnomon_profiler.repository import entry_of
from gnomon_profiler.tensor_index import TensorIndex, part_file

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


INDEX = "index"
_MODELS, _MANIFEST = "models/", "manifest.json"
_ATTEMPTS = 5
_Names: TypeAlias = list[str]  # inside the class, `list` is its method
_Keys: TypeAlias = list[tuple[str, str]]


class S3Repository(Opening):
    """A `ModelRepository` in a bucket, which several machines may read and write.

    `client` is a boto3 S3 client; one is made from the environment without it.

    Raises:
        GnomonError: 422 `package_missing` without boto3; from every method 503 `repository_unreachable` where S3 does not answer,
            or refuses.

    """

    def __init__(self, bucket: str, prefix: str, cache: Path, client: Any = None) -> None:
        self._bucket = Bucket(bucket, prefix, client)
        self._folder = ObjectFolder(cache)
        self._parts = cache / "parts"
        self._profiles = FetchedProfiles(self._bucket, self._folder)

    def get(self, reference: str) -> ModelEntry:
        manifest = self._open(reference)
        for file in manifest.sha256:
            self._fetch(manifest, file, manifest.sha256[file])
        self._profiles.fetch(manifest.name, manifest.version)
        return entry_of(manifest, self._folder)

    def put_profile(self, model: str, path: Path) -> None:
        """Keep what was measured of NAME@VERSION on a machine, which this file is called after, for all that open the model."""
        self._profiles.put(model, path)

    def get_blocks(self, reference: str, blocks: Iterable[int]) -> ModelEntry:
        """The entry with a weight file that holds the tensors of these blocks; no others are fetched, but for small gaps.

        An entry without layer blocks, or from before there was an index, comes whole.
        """
        manifest = self._open(reference)
        if LAYERS not in manifest.sha256 or INDEX not in manifest.extra:
            return self.get(reference)
        for file in (PROGRAM, LAYERS):
            self._fetch(manifest, file, manifest.sha256[file])
        self._profiles.fetch(manifest.name, manifest.version)
        layers = Layers.from_json(json.loads(self._folder.path(manifest.sha256[LAYERS]).read_bytes()))
        digest = self._part(manifest, sorted(layers.weights(blocks)))
        return replace(
            entry_of(manifest, self._folder),
            weights=self._folder.path(digest),
            sha256=dict(manifest.sha256) | {WEIGHTS: digest},
        )

    def put(self, name: str, version: str, files: Mapping[str, bytes]) -> ModelEntry:
        index = TensorIndex.of(files[WEIGHTS]).to_bytes() if WEIGHTS in files else b""
        manifest = new_manifest(name, version, files, {INDEX: hashlib.sha256(index).hexdigest()})
        for file, digest in manifest.sha256.items():
            self._bucket.put_object(_object(digest), files[file], digest)
        self._bucket.put_object(_object(manifest.extra[INDEX]), index, manifest.extra[INDEX])
        self._publish_manifest(manifest)
        self._keep(manifest, files)
        return self.get(f"{name}@{version}")

    def list(self) -> Iterator[ModelEntry]:
        """Each is fetched, since what is listed has been verified."""
        for name, version in self._keys():
            try:
                yield self.get(f"{name}@{version}")
            except GnomonError as error:
                if error.code != "model_corrupt":
                    raise

    def _is_stored(self, manifest: Manifest) -> bool:
        """Each file is read again from S3, whatever this machine holds."""
        digests = (*manifest.sha256.values(), *manifest.extra.values())
        return all(self._bucket.has_digest(_object(digest), digest) for digest in digests)

    # Finding

    def _versions(self, name: str) -> _Names:
        return sorted_versions(version for _, version in self._keys(name))

    def _keys(self, name: str = "") -> _Keys:
        """The name and version of each manifest, of one model or of all."""
        steps = [key.removeprefix(_MODELS).split("/") for key in self._bucket.keys(f"{_MODELS}{name}/" if name else _MODELS)]
        return [
            (model, version)
            for model, version, file in (step for step in steps if len(step) == len(("NAME", "VERSION", _MANIFEST)))
            if file == _MANIFEST and NAME.fullmatch(model) and VERSION.fullmatch(version)
        ]

    def _manifest(self, name: str, version: str) -> bytes:
        found = self._bucket.read(_manifest(name, version))
        if found is None:
            raise FileNotFoundError
        return found[0]

    # Fetching

    def _fetch(self, manifest: Manifest, file: str, digest: str) -> None:
        if self._folder.is_whole(digest):
            return
        with self._folder.writing():
            if self._folder.is_whole(digest):
                return
            found = hashlib.sha256()
            with self._folder.incoming(self._folder.path(digest)) as write:
                for chunk in self._bucket.chunks(_object(digest)):
                    found.update(chunk)
                    write(chunk)
                if found.hexdigest() != digest:
                    raise corrupt_file(manifest.name, manifest.version, file)

    def _part(self, manifest: Manifest, names: _Names) -> str:
        """The SHA-256 of a weight file of these tensors, which is in the folder."""
        known = self._parts / manifest.sha256[WEIGHTS] / hashlib.sha256("\n".join(names).encode()).hexdigest()
        if known.is_file() and self._folder.is_whole(digest := known.read_text().strip()):
            return digest
        self._fetch(manifest, INDEX, manifest.extra[INDEX])
        index = TensorIndex.from_bytes(self._folder.path(manifest.extra[INDEX]).read_bytes())
        data = part_file(index, self._tensors(manifest, index, names))
        digest = hashlib.sha256(data).hexdigest()
        with self._folder.writing():
            self._folder.publish(data, self._folder.path(digest))
            self._folder.publish(digest.encode(), known)
        return digest

    def _tensors(self, manifest: Manifest, index: TensorIndex, names: _Names) -> dict[str, bytes]:
        """Each tensor's bytes, compared with its hash. Those that lie close together come with one request."""
        contents: dict[str, bytes] = {}
        if index.tensors.keys() >= set(names):
            contents = {name: b"" for name in names if index.tensors[name].begin == index.tensors[name].end}
            for first, last in index.spans(names):
                data = self._bucket.read_range(_object(manifest.sha256[WEIGHTS]), first, last)
                for name in names:
                    tensor = index.tensors[name]
                    if first <= tensor.begin < tensor.end <= last:
                        contents[name] = data[tensor.begin - first : tensor.end - first]
        whole = [name for name, data in contents.items() if hashlib.sha256(data).hexdigest() == index.tensors[name].sha256]
        if set(whole) != set(names):
            raise corrupt_file(manifest.name, manifest.version, WEIGHTS)
        return contents

    # Storing

    def _publish_manifest(self, manifest: Manifest) -> None:
        """Put it if there is none, or in place of the very one that was read and that it may replace."""
        key = _manifest(manifest.name, manifest.version)
        for _ in range(_ATTEMPTS):
            existing = self._bucket.read(key)
            if existing is not None and not takes_its_place(manifest, existing[0]):
                return
            if self._bucket.put_if(key, manifest.to_bytes(), existing and existing[1]):
                return
        raise GnomonError(503, "repository_busy", f"Others keep writing {manifest.name}@{manifest.version}.", "Try again.")

    def _keep(self, manifest: Manifest, files: Mapping[str, bytes]) -> None:
        """What was put need not be fetched."""
        with self._folder.writing():
            for file, digest in manifest.sha256.items():
                if not self._folder.is_whole(digest):
                    self._folder.publish(files[file], self._folder.path(digest))


def _object(digest: str) -> str:
    return f"objects/{digest[:2]}/{digest}"


def _manifest(name: str, version: str) -> str:
    return f"{_MODELS}{name}/{version}/{_MANIFEST}"
