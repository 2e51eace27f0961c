"""Files that never change, in a folder: written beside their place, then renamed into it.

    objects/ab/abcdef…   a file by its SHA-256, read-only
    incoming/            what is being written

A file that has been verified is not read again while its inode, size and times stay the same. Directories and files are on disk
before anything names them; truncating or writing one in place would kill every process that maps it, so nothing does.

A bucket of S3 as a repository needs it: objects by key, put whole, read in parts, listed; S3's errors as ours.

Credentials and region come from where boto3 looks for them; `AWS_ENDPOINT_URL` names another server.

A server that takes connections and answers nothing costs whoever asks three times 20 s (as often as `AWS_MAX_ATTEMPTS` says); by
boto3's own limits it would be minutes. What is long on its way is no silence: each read has the time anew.
"""

from __future__ import annotations

import base64
import errno
import fcntl
import hashlib
import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from gnomon_core.errors import GnomonError
from gnomon_core.packaging import how_to_install
from gnomon_core.whole_files import make_folder, replacing

Writer: TypeAlias = Callable[[bytes], int]
_CHUNK_BYTES = 1 << 20


class ObjectFolder:
    """Content-addressed files below a folder, which several processes may read and write."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._objects, self._incoming = root / "objects", root / "incoming"
        self._verified: dict[str, tuple[int, ...]] = {}
        for directory in (self._objects, self._incoming):
            make_if_allowed(directory)

    def path(self, digest: str) -> Path:
        return self._objects / digest[:2] / digest

    def is_whole(self, digest: str, *, afresh: bool = False) -> bool:
        """Whether the file is there with this SHA-256; `afresh` reads it again even if it has been verified."""
        try:
            with self.path(digest).open("rb") as file:
                status = os.fstat(file.fileno())
                identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
                if not afresh and self._verified.get(digest) == identity:
                    return True
                found = hashlib.sha256()
                while chunk := file.read(_CHUNK_BYTES):
                    found.update(chunk)
        except OSError:
            return False
        if found.hexdigest() != digest:
            self._verified.pop(digest, None)
            return False
        self._verified[digest] = identity
        return True

    @contextmanager
    def writing(self) -> Iterator[None]:
        """One writer at a time; what a killed one left behind is removed."""
        with (self.root / "lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for leftover in self._incoming.iterdir():
                leftover.unlink()
            yield

    def publish(self, data: bytes, path: Path) -> None:
        """Put a file in its place, whole. While `writing`."""
        with self.incoming(path) as write:
            write(data)

    @contextmanager
    def incoming(self, path: Path) -> Iterator[Writer]:
        """A file that grows and is put in its place at the end, or not at all. While `writing`."""
        make_folder(path.parent)
        with replacing(path, durable=True, mode=0o444, aside=self._incoming) as file:
            yield file.write


def make_if_allowed(directory: Path) -> None:
    """Make a folder, unless it is another's to fill: who only reads finds nothing in it, and no volume is written to."""
    try:
        make_folder(directory)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise


CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 20.0
_ABSENT = frozenset({"NoSuchKey", "404", "NotFound", "InvalidRange"})
_ANOTHER_WAS_FIRST = frozenset({"PreconditionFailed", "412", "ConditionalRequestConflict", "409"})


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
        """The keys that begin so."""
        return list(self.tags(begin))

    def tags(self, begin: str) -> dict[str, str]:
        """Of the objects whose keys begin so, the ETags, which are others for another content."""
        with self._told():
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._name, Prefix=self._prefix + begin)
            return {item["Key"].removeprefix(self._prefix): item["ETag"] for page in pages for item in page.get("Contents", ())}

    def read(self, key: str) -> tuple[bytes, str] | None:
        """An object and its ETag; None where there is none."""
        with self._told():
            answer = self._get(key)
            return None if answer is None else (answer["Body"].read(), answer["ETag"])

    def read_range(self, key: str, first: int, last: int) -> bytes:
        """The bytes `first` … `last` − 1 of an object, fewer where it is shorter or not there."""
        with self._told():
            answer = self._get(key, Range=f"bytes={first}-{last - 1}")
            data: bytes = b"" if answer is None else answer["Body"].read()
            return data

    def chunks(self, key: str) -> Iterator[bytes]:
        """An object piece by piece; nothing where there is none."""
        with self._told():
            answer = self._get(key)
            if answer is not None:
                yield from answer["Body"].iter_chunks(_CHUNK_BYTES)

    def has_digest(self, key: str, digest: str) -> bool:
        """Whether there is an object with this SHA-256: it is read."""
        found = hashlib.sha256()
        for chunk in self.chunks(key):
            found.update(chunk)
        return found.hexdigest() == digest

    def put_object(self, key: str, data: bytes, digest: str) -> None:
        """Store bytes of this SHA-256, which S3 compares, unless it says that it has them."""
        checksum = base64.b64encode(bytes.fromhex(digest)).decode()
        with self._told():
            if not self._states(key, len(data), checksum):
                self._client.put_object(Bucket=self._name, Key=self._prefix + key, Body=data, ChecksumSHA256=checksum)

    def put_if(self, key: str, data: bytes, etag: str | None) -> bool:
        """Store bytes in place of the object with this ETag, or of none; False where there is another one by now."""
        condition = {"IfNoneMatch": "*"} if etag is None else {"IfMatch": etag}
        with self._told():
            try:
                self._client.put_object(Bucket=self._name, Key=self._prefix + key, Body=data, **condition)
            except self._errors.ClientError as error:
                if _code(error) in _ANOTHER_WAS_FIRST:
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

    def _states(self, key: str, size: int, checksum: str) -> bool:
        try:
            head = self._client.head_object(Bucket=self._name, Key=self._prefix + key, ChecksumMode="ENABLED")
        except self._errors.ClientError as error:
            if _code(error) in _ABSENT:
                return False
            raise
        return bool(head["ContentLength"] == size and head.get("ChecksumSHA256") == checksum)

    @contextmanager
    def _told(self) -> Iterator[None]:
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
