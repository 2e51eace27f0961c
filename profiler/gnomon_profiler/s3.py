"""Models in S3, or anything that speaks it, with a folder on this machine for what has been fetched.

    s3://BUCKET/PREFIX/objects/ab/abcdef…                    a file by its SHA-256, which S3 compares when it is put
    s3://BUCKET/PREFIX/models/NAME/VERSION/manifest.json     as in a directory; put last, and only if no other writer was first

A file is hashed while it is fetched and appears in the folder only if it is what the manifest states; the folder is content-
addressed and verified like a directory repository's. `get_blocks` fetches by byte ranges the tensors of some blocks alone: each
has its own SHA-256 in an index that is stored beside the weights.

Credentials and region come from where boto3 looks for them; `AWS_ENDPOINT_URL` names another server.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from gnomon_core.blocks import Layers
from gnomon_core.errors import GnomonError
from gnomon_core.seam_values import ModelEntry
from gnomon_profiler.entries import (
    NAME,
    PROGRAM,
    VERSION,
    WEIGHTS,
    Manifest,
    corrupt_file,
    corrupt_manifest,
    missing_model,
    new_manifest,
    newer,
    read_manifest,
    sorted_versions,
)
from gnomon_profiler.layers_file import LAYERS
from gnomon_profiler.objects import ObjectFolder
from gnomon_profiler.repository import entry_of
from gnomon_profiler.tensor_index import TensorIndex, part_file

INDEX = "index"
_MANIFEST = "manifest.json"
_CHUNK_BYTES = 1 << 20
_ABSENT = frozenset({"NoSuchKey", "404", "NotFound"})
_ANOTHER_WAS_FIRST = frozenset({"PreconditionFailed", "412", "ConditionalRequestConflict", "409"})
_ATTEMPTS = 5


class S3Repository:
    """A `ModelRepository` in a bucket, which several machines may read and write.

    `client` is a boto3 S3 client; one is made from the environment without it.

    Raises:
        GnomonError: 422 `package_missing` without boto3; 503 `repository_unreachable` where S3 does not answer or refuses.

    """

    def __init__(self, bucket: str, prefix: str, cache: Path, client: Any = None) -> None:
        self._bucket, self._prefix = bucket, f"{prefix}/" if prefix else ""
        self._folder = ObjectFolder(cache)
        self._parts = cache / "parts"
        self._client = client or _import("boto3").client("s3")
        self._errors = _import("botocore.exceptions")

    def get(self, reference: str) -> ModelEntry:
        manifest = self._read(*self._find(reference))
        for file in manifest.sha256:
            self._fetch(manifest, file)
        return entry_of(manifest, self._folder)

    def get_blocks(self, reference: str, blocks: Iterable[int]) -> ModelEntry:
        """The entry with a weight file that holds the tensors of these blocks, and no others have been fetched.

        An entry without layer blocks, or from before there was an index, comes whole.
        """
        manifest = self._read(*self._find(reference))
        if LAYERS not in manifest.sha256 or INDEX not in manifest.extra:
            return self.get(reference)
        for file in (PROGRAM, LAYERS):
            self._fetch(manifest, file)
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
        with self._told():
            for digest, data in [
                *((manifest.sha256[file], data) for file, data in files.items()),
                (manifest.extra[INDEX], index),
            ]:
                if not self._is_stored(digest, len(data)):
                    checksum = base64.b64encode(bytes.fromhex(digest)).decode()
                    self._client.put_object(Bucket=self._bucket, Key=self._object(digest), Body=data, ChecksumSHA256=checksum)
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

    def verify(self, reference: str) -> bool:
        """Whether every file in S3 has its SHA-256: each is read again, whatever this machine holds."""
        try:
            manifest = self._read(*self._find(reference))
        except GnomonError as error:
            if error.code == "model_corrupt":
                return False
            raise
        with self._told():
            return all(self._has_digest(digest) for digest in manifest.sha256.values())

    def _keep(self, manifest: Manifest, files: Mapping[str, bytes]) -> None:
        """What was put need not be fetched."""
        with self._folder.writing():
            for file, digest in manifest.sha256.items():
                if not self._folder.is_whole(digest):
                    self._folder.publish(files[file], self._folder.path(digest))

    # Finding

    def _find(self, reference: str) -> tuple[str, str]:
        name, at, version = reference.partition("@")
        versions = sorted_versions(version for _, version in self._keys(name)) if NAME.fullmatch(name) else []
        if at and version in versions:
            return name, version
        if not at and versions:
            return name, versions[-1]
        raise missing_model(reference, (f"{model}@{there}" for model, there in self._keys()))

    def _keys(self, name: str = "") -> _Keys:
        """The name and version of each manifest, of one model or of all."""
        prefix = f"{self._prefix}models/"
        found = []
        with self._told():
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=f"{prefix}{name}/" if name else prefix
            )
            for item in (item for page in pages for item in page.get("Contents", ())):
                parts = item["Key"].removeprefix(prefix).split("/")
                if len(parts) == len(("NAME", "VERSION", _MANIFEST)) and parts[2] == _MANIFEST:
                    found.append((parts[0], parts[1]))
        return [(model, version) for model, version in found if NAME.fullmatch(model) and VERSION.fullmatch(version)]

    def _read(self, name: str, version: str) -> Manifest:
        with self._told():
            answer = self._get(self._manifest(name, version))
            if answer is None:
                raise corrupt_manifest(name, version, FileNotFoundError())
            return read_manifest(name, version, answer["Body"].read())

    def _manifest(self, name: str, version: str) -> str:
        return f"{self._prefix}models/{name}/{version}/{_MANIFEST}"

    def _object(self, digest: str) -> str:
        return f"{self._prefix}objects/{digest[:2]}/{digest}"

    def _get(self, key: str, **options: str) -> Any:
        """What GET answers; None where there is nothing."""
        try:
            return self._client.get_object(Bucket=self._bucket, Key=key, **options)
        except self._errors.ClientError as error:
            if _code(error) in _ABSENT:
                return None
            raise

    # Fetching

    def _fetch(self, manifest: Manifest, file: str) -> None:
        self._fetch_object(manifest, file, manifest.sha256[file])

    def _fetch_object(self, manifest: Manifest, file: str, digest: str) -> None:
        if self._folder.is_whole(digest):
            return
        with self._told(), self._folder.writing():
            if self._folder.is_whole(digest):
                return
            answer = self._get(self._object(digest))
            if answer is None:
                raise corrupt_file(manifest.name, manifest.version, file)
            found = hashlib.sha256()
            with self._folder.incoming(self._folder.path(digest)) as write:
                for chunk in answer["Body"].iter_chunks(_CHUNK_BYTES):
                    found.update(chunk)
                    write(chunk)
                if found.hexdigest() != digest:
                    raise corrupt_file(manifest.name, manifest.version, file)

    def _part(self, manifest: Manifest, names: _Names) -> str:
        """The SHA-256 of a weight file of these tensors, which is in the folder."""
        weights = manifest.sha256[WEIGHTS]
        known = self._parts / weights / hashlib.sha256("\n".join(names).encode()).hexdigest()
        if known.is_file() and self._folder.is_whole(digest := known.read_text().strip()):
            return digest
        self._fetch_object(manifest, INDEX, manifest.extra[INDEX])
        index = TensorIndex.from_bytes(self._folder.path(manifest.extra[INDEX]).read_bytes())
        data = part_file(index, self._tensors(manifest, index, names))
        digest = hashlib.sha256(data).hexdigest()
        with self._folder.writing():
            self._folder.publish(data, self._folder.path(digest))
            self._folder.publish(digest.encode(), known)
        return digest

    def _tensors(self, manifest: Manifest, index: TensorIndex, names: _Names) -> dict[str, bytes]:
        missing = set(names) - set(index.tensors)
        if missing:
            raise corrupt_file(manifest.name, manifest.version, WEIGHTS)
        contents: dict[str, bytes] = {}
        for first, last in index.spans(names):
            data = self._range(manifest, first, last)
            for name in names:
                tensor = index.tensors[name]
                if first <= tensor.begin and tensor.end <= last and tensor.end > tensor.begin:
                    contents[name] = data[tensor.begin - first : tensor.end - first]
        contents |= {name: b"" for name in names if name not in contents}
        if any(hashlib.sha256(data).hexdigest() != index.tensors[name].sha256 for name, data in contents.items()):
            raise corrupt_file(manifest.name, manifest.version, WEIGHTS)
        return contents

    def _range(self, manifest: Manifest, first: int, last: int) -> bytes:
        with self._told():
            try:
                answer = self._get(self._object(manifest.sha256[WEIGHTS]), Range=f"bytes={first}-{last - 1}")
            except self._errors.ClientError as error:
                if _code(error) != "InvalidRange":
                    raise
                answer = None
            if answer is None:
                raise corrupt_file(manifest.name, manifest.version, WEIGHTS)
            data: bytes = answer["Body"].read()
            return data

    # Storing

    def _is_stored(self, digest: str, size: int) -> bool:
        try:
            head = self._client.head_object(Bucket=self._bucket, Key=self._object(digest), ChecksumMode="ENABLED")
        except self._errors.ClientError as error:
            if _code(error) in _ABSENT:
                return False
            raise
        checksum = base64.b64encode(bytes.fromhex(digest)).decode()
        return bool(head["ContentLength"] == size and head.get("ChecksumSHA256") == checksum)

    def _has_digest(self, digest: str) -> bool:
        answer = self._get(self._object(digest))
        if answer is None:
            return False
        found = hashlib.sha256()
        for chunk in answer["Body"].iter_chunks(_CHUNK_BYTES):
            found.update(chunk)
        return found.hexdigest() == digest

    def _publish_manifest(self, manifest: Manifest) -> None:
        """Put it if there is none, or in place of the very one that was read and that it may replace."""
        key = self._manifest(manifest.name, manifest.version)
        for _ in range(_ATTEMPTS):
            existing = self._get(key)
            if existing is None:
                condition = {"IfNoneMatch": "*"}
            elif self._takes_its_place(manifest, existing["Body"].read()):
                condition = {"IfMatch": existing["ETag"]}
            else:
                return
            try:
                self._client.put_object(Bucket=self._bucket, Key=key, Body=manifest.to_bytes(), **condition)
            except self._errors.ClientError as error:
                if _code(error) not in _ANOTHER_WAS_FIRST:
                    raise
            else:
                return
        raise GnomonError(503, "repository_busy", f"Others keep writing {manifest.name}@{manifest.version}.", "Try again.")

    def _takes_its_place(self, manifest: Manifest, data: bytes) -> bool:
        try:
            existing = read_manifest(manifest.name, manifest.version, data)
        except GnomonError:
            return True
        return newer(manifest, existing)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """S3's own errors as ours."""
        try:
            yield
        except (self._errors.BotoCoreError, self._errors.ClientError) as error:
            raise GnomonError(
                503,
                "repository_unreachable",
                f"The model repository s3://{self._bucket}/{self._prefix} cannot be used: {error}",
                "Check the bucket's name, the credentials and AWS_ENDPOINT_URL.",
            ) from error


_Names = list[str]  # inside the class, `list` is its method
_Keys = list[tuple[str, str]]


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _import(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError:
        raise GnomonError(
            422, "package_missing", "A model repository in S3 needs the Python package boto3.", "Install gnomon[lambda]."
        ) from None
