"""Models in S3, or anything that speaks it, with a folder on this machine for what has been fetched.

    s3://BUCKET/PREFIX/objects/ab/abcdef…                    a file by its SHA-256, which S3 compares when it is put
    s3://BUCKET/PREFIX/models/NAME/VERSION/manifest.json     as in a directory; put last, and only if no other writer was first
    s3://BUCKET/PREFIX/profiles/NAME@VERSION/MACHINE.json    the profile of it on a machine

A file is hashed while it is fetched and appears in the folder only if it is what the manifest states; the folder is content-
addressed and verified like a directory repository's. `get_blocks` fetches by byte ranges the tensors of some blocks alone: each
has its own SHA-256 in an index that is stored beside the weights.

Profiles are put when they are measured, and fetched with the model by every machine that opens it.

    s3://BUCKET/PREFIX/profiles/NAME@VERSION/MACHINE.json ─▶ profiles/NAME@VERSION/MACHINE.json in the folder of what was fetched
                                                             .MACHINE.json.tag beside it: the ETag of the object that it is of

A profile may be measured anew, so unlike a model's files it changes; a listing says which have.

Credentials and region come from boto3's usual sources; `AWS_ENDPOINT_URL` names another server.

A server that accepts connections and does not respond costs three timeouts of 20 s (`AWS_MAX_ATTEMPTS`); with boto3's defaults it
would be minutes. The timeout is for each read, so a long transfer does not exceed it.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import json
import logging
import mmap
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from gnomon_core.blocks import Layers
from gnomon_core.errors import GnomonError
from gnomon_core.interfaces import ModelEntry
from gnomon_core.model_files import NAME, VERSION
from gnomon_core.packaging import how_to_install
from gnomon_profiler.layers_file import LAYERS
from gnomon_profiler.repository import (
    PROGRAM,
    WEIGHTS,
    BaseRepository,
    Content,
    Manifest,
    ObjectFolder,
    corrupt_file,
    entry_of,
    new_manifest,
    opened,
    replaces,
    sorted_versions,
)
from gnomon_profiler.tensor_index import TensorIndex, part_file

_PROFILES = "profiles/"
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}\.json")
_LOG = logging.getLogger(__name__)


class FetchedProfiles:
    """A local copy of a bucket's profiles, in a folder."""

    def __init__(self, bucket: Bucket, folder: ObjectFolder) -> None:
        self._bucket, self._folder = bucket, folder

    def fetch(self, name: str, version: str) -> None:
        """Fetch a model's new and changed profiles. Without permission to read them, the model is served without profiles."""
        try:
            self._fetch(f"{name}@{version}")
        except GnomonError as error:
            _LOG.warning("the profile of %s@%s cannot be fetched: %s", name, version, error)

    def _fetch(self, model: str) -> None:
        begin = f"{_PROFILES}{model}/"
        for key, tag in self._bucket.tags(begin).items():
            file = key.removeprefix(begin)
            if not _FILE.fullmatch(file):
                continue
            path = self._folder.root / _PROFILES / model / file
            if path.is_file() and _read(_tag_of(path)) == tag:
                continue
            data = self._bucket.read(key)
            if data is not None:
                with self._folder.writing():
                    self._folder.publish(data[0], path)
                    self._folder.publish(data[1].encode(), _tag_of(path))

    def put(self, model: str, path: Path) -> None:
        """Upload a profile of NAME@VERSION under its file name.

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


class S3Repository(BaseRepository):
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
        """Upload the profile of NAME@VERSION on a machine, after which the file is named, for all users of the model."""
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

    def _put(self, name: str, version: str, files: Mapping[str, Content]) -> ModelEntry:
        index = _index(files[WEIGHTS]) if WEIGHTS in files else b""
        manifest = new_manifest(name, version, files, {INDEX: hashlib.sha256(index).hexdigest()})
        existing = self._bucket.read(_manifest(name, version))
        if existing is not None:
            replaces(manifest, existing[0])  # refuses another content before it is uploaded
        for file, digest in manifest.sha256.items():
            self._bucket.put_object(_object(digest), files[file], digest)
        self._bucket.put_object(_object(manifest.extra[INDEX]), index, manifest.extra[INDEX])
        self._publish_manifest(manifest)
        self._keep(manifest, files)
        return self.get(f"{name}@{version}")

    def list(self) -> Iterator[ModelEntry]:
        """All entries. Each is fetched, because listed entries are verified ones."""
        for name, version in self._keys():
            try:
                yield self.get(f"{name}@{version}")
            except GnomonError as error:
                if error.code != "model_corrupt":
                    raise

    def _is_stored(self, manifest: Manifest) -> bool:
        """Read each file again from S3, whatever this machine has, and compare its hash."""
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
        data = self._bucket.read(_manifest(name, version))
        if data is None:
            raise FileNotFoundError
        return data[0]

    # Fetching

    def _fetch(self, manifest: Manifest, file: str, digest: str) -> None:
        if self._folder.is_whole(digest):
            return
        with self._folder.writing():
            if self._folder.is_whole(digest):
                return
            computed = hashlib.sha256()
            with self._folder.incoming(self._folder.path(digest)) as write:
                for chunk in self._bucket.chunks(_object(digest)):
                    computed.update(chunk)
                    write(chunk)
                if computed.hexdigest() != digest:
                    raise corrupt_file(manifest.name, manifest.version, file)

    def _part(self, manifest: Manifest, names: _Names) -> str:
        """The SHA-256 of a weight file of these tensors, which is in the folder."""
        digest_file = self._parts / manifest.sha256[WEIGHTS] / hashlib.sha256("\n".join(names).encode()).hexdigest()
        if digest_file.is_file() and self._folder.is_whole(digest := digest_file.read_text().strip()):
            return digest
        self._fetch(manifest, INDEX, manifest.extra[INDEX])
        index = TensorIndex.from_bytes(self._folder.path(manifest.extra[INDEX]).read_bytes())
        data = part_file(index, self._tensors(manifest, index, names))
        digest = hashlib.sha256(data).hexdigest()
        with self._folder.writing():
            self._folder.publish(data, self._folder.path(digest))
            self._folder.publish(digest.encode(), digest_file)
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
        complete = [name for name, data in contents.items() if hashlib.sha256(data).hexdigest() == index.tensors[name].sha256]
        if set(complete) != set(names):
            raise corrupt_file(manifest.name, manifest.version, WEIGHTS)
        return contents

    # Storing

    def _publish_manifest(self, manifest: Manifest) -> None:
        """Store a manifest (compare-and-swap): if none exists, or in place of the one that was read and may be replaced."""
        key = _manifest(manifest.name, manifest.version)
        for _ in range(_ATTEMPTS):
            existing = self._bucket.read(key)
            if existing is not None and not replaces(manifest, existing[0]):
                return
            if self._bucket.put_if(key, manifest.to_bytes(), existing and existing[1]):
                return
        raise GnomonError(503, "repository_busy", f"Other clients keep writing {manifest.name}@{manifest.version}.", "Try again.")

    def _keep(self, manifest: Manifest, files: Mapping[str, Content]) -> None:
        """Keep uploaded files in the local folder, so that they need not be fetched."""
        with self._folder.writing():
            for file, digest in manifest.sha256.items():
                if not self._folder.is_whole(digest):
                    self._folder.publish(files[file], self._folder.path(digest))


def _index(weights: Content) -> bytes:
    """The index of a weight file's tensors, as a document."""
    if isinstance(weights, bytes) or not weights.stat().st_size:
        return TensorIndex.of(weights if isinstance(weights, bytes) else b"").to_bytes()
    with weights.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        return TensorIndex.of(mapped).to_bytes()


def _object(digest: str) -> str:
    return f"objects/{digest[:2]}/{digest}"


def _manifest(name: str, version: str) -> str:
    return f"{_MODELS}{name}/{version}/{_MANIFEST}"


_CHUNK_BYTES = 1 << 20
CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 20.0
_ABSENT = frozenset({"NoSuchKey", "404", "NotFound", "InvalidRange"})
_PRECONDITION_FAILED = frozenset({"PreconditionFailed", "412", "ConditionalRequestConflict", "409"})


class Bucket:
    """The keys of a bucket that begin with `prefix`, which is left out of them here.

    Raises:
        GnomonError: 422 `package_missing` without boto3; from every method 503 `repository_unreachable` where S3 does not answer,
            or refuses.

    """

    def __init__(self, name: str, prefix: str, client: Any = None) -> None:
        self._name, self._prefix = name, f"{prefix}/" if prefix else ""
        self._client = client or _client()
        self._errors = _import("botocore.exceptions")

    def keys(self, begin: str) -> list[str]:
        """The keys with this prefix."""
        return list(self.tags(begin))

    def tags(self, begin: str) -> dict[str, str]:
        """The ETags, which change with the content, of objects whose keys have this prefix."""
        with self._s3_errors():
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._name, Prefix=self._prefix + begin)
            return {item["Key"].removeprefix(self._prefix): item["ETag"] for page in pages for item in page.get("Contents", ())}

    def read(self, key: str) -> tuple[bytes, str] | None:
        """An object and its ETag; None where there is none."""
        with self._s3_errors():
            answer = self._get(key)
            return None if answer is None else (answer["Body"].read(), answer["ETag"])

    def read_range(self, key: str, first: int, last: int) -> bytes:
        """The bytes `first` … `last` − 1 of an object, fewer where it is shorter or not there."""
        with self._s3_errors():
            answer = self._get(key, Range=f"bytes={first}-{last - 1}")
            data: bytes = b"" if answer is None else answer["Body"].read()
            return data

    def chunks(self, key: str) -> Iterator[bytes]:
        """An object piece by piece; nothing where there is none."""
        with self._s3_errors():
            answer = self._get(key)
            if answer is not None:
                yield from answer["Body"].iter_chunks(_CHUNK_BYTES)

    def has_digest(self, key: str, digest: str) -> bool:
        """True if an object with this SHA-256 exists. Reads the object."""
        computed = hashlib.sha256()
        for chunk in self.chunks(key):
            computed.update(chunk)
        return computed.hexdigest() == digest

    def put_object(self, key: str, content: Content, digest: str) -> None:
        """Store a file with this SHA-256, which S3 verifies, unless the object exists."""
        checksum = base64.b64encode(bytes.fromhex(digest)).decode()
        with self._s3_errors(), opened(content) as (body, size_bytes):
            if not self._is_stored_as(key, size_bytes, checksum):
                self._client.put_object(Bucket=self._name, Key=self._prefix + key, Body=body, ChecksumSHA256=checksum)

    def put_if(self, key: str, data: bytes, etag: str | None) -> bool:
        """Store bytes if the object still has this ETag, or does not exist for none; False if it has changed."""
        condition = {"IfNoneMatch": "*"} if etag is None else {"IfMatch": etag}
        with self._s3_errors():
            try:
                self._client.put_object(Bucket=self._name, Key=self._prefix + key, Body=data, **condition)
            except self._errors.ClientError as error:
                if _code(error) in _PRECONDITION_FAILED:
                    return False
                raise
        return True

    def _get(self, key: str, **options: str) -> Any:
        try:
            return self._client.get_object(Bucket=self._name, Key=self._prefix + key, **options)
        except self._errors.ClientError as error:
            if _code(error) in _ABSENT:
                return None
            raise

    def _is_stored_as(self, key: str, size: int, checksum: str) -> bool:
        try:
            head = self._client.head_object(Bucket=self._name, Key=self._prefix + key, ChecksumMode="ENABLED")
        except self._errors.ClientError as error:
            if _code(error) in _ABSENT:
                return False
            raise
        return bool(head["ContentLength"] == size and head.get("ChecksumSHA256") == checksum)

    @contextmanager
    def _s3_errors(self) -> Iterator[None]:
        try:
            yield
        except (self._errors.BotoCoreError, self._errors.ClientError) as error:
            raise GnomonError(
                503,
                "repository_unreachable",
                f"The model repository s3://{self._name}/{self._prefix} cannot be used: {error}",
                "Check the bucket's name, the credentials and AWS_ENDPOINT_URL.",
            ) from error


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _client() -> Any:
    boto3, config = _import("boto3"), _import("botocore.config")
    limits = config.Config(connect_timeout=CONNECT_TIMEOUT_S, read_timeout=READ_TIMEOUT_S, retries={"mode": "standard"})
    return boto3.client("s3", config=limits)


def _import(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError:
        raise GnomonError(
            422, "package_missing", "A model repository in S3 needs the Python package boto3.", how_to_install("lambda")
        ) from None
