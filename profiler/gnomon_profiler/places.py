"""Where a model repository is, from its address: a folder, or `s3://bucket/prefix`."""

from __future__ import annotations

from pathlib import Path

from gnomon_core.seams import ModelRepository
from gnomon_profiler.repository import DirectoryRepository

S3_SCHEME = "s3://"


def open_repository(address: str, cache: Path | None = None) -> ModelRepository:
    """The repository at an address. `cache` is where one that is elsewhere keeps what it has fetched.

    Raises:
        GnomonError: 422 where a package that it needs is not installed.

    """
    if not address.startswith(S3_SCHEME):
        return DirectoryRepository(Path(address).expanduser())
    from gnomon_profiler.s3 import S3Repository  # noqa: PLC0415 - boto3 takes a while, and few have it

    bucket, _, prefix = address.removeprefix(S3_SCHEME).partition("/")
    return S3Repository(bucket, prefix.strip("/"), cache or Path.home() / ".cache" / "gnomon" / "models")
