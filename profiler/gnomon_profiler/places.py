"""Opens a model repository by its address: a folder, or `s3://bucket/prefix`."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from gnomon_core.errors import bad_request
from gnomon_core.interfaces import ModelRepository
from gnomon_profiler.repository import DirectoryRepository

S3_SCHEME = "s3://"
IN_IMAGES = "/models"
CACHE = "gnomon-models"


def open_repository(address: str, cache: Path | None = None) -> ModelRepository:
    """The repository at an address. `cache` is the folder for files that are fetched from S3.

    Raises:
        GnomonError: 400 `invalid_repository`; 422 where a package that it needs is not installed.

    """
    if "://" not in address:
        return DirectoryRepository(Path(address).expanduser())
    bucket, _, prefix = address.removeprefix(S3_SCHEME).partition("/")
    if not address.startswith(S3_SCHEME) or not bucket:
        raise bad_request(
            "invalid_repository", f"{address[:200]!r} is not a model repository.", "Name a folder, or s3://BUCKET/PREFIX."
        )
    from gnomon_profiler.s3 import S3Repository  # noqa: PLC0415 - boto3 takes a while, and few have it

    return S3Repository(bucket, prefix.strip("/"), cache or Path.home() / ".cache" / "gnomon" / "models")


def share_profile(repository: ModelRepository, model: str, path: Path) -> None:
    """Upload the profile of NAME@VERSION to a repository in S3; in a folder it lies beside the models already.

    Raises:
        GnomonError: 503 `repository_unreachable`; it stays where it was written.

    """
    from gnomon_profiler.s3 import S3Repository  # noqa: PLC0415 - as above

    if isinstance(repository, S3Repository):
        repository.put_profile(model, path)


def repository_of_instance(environment: Mapping[str, str]) -> ModelRepository:
    """The repository that an instance in an image serves from: `GNOMON_MODELS`, a volume at /models unless said otherwise.

    What is fetched from elsewhere is kept in a folder among temporary files, the only place where an image's user may write;
    weights are mapped from the files there.

    Raises:
        GnomonError: 422 where a package that it needs is not installed.

    """
    return open_repository(environment.get("GNOMON_MODELS") or IN_IMAGES, Path(tempfile.gettempdir()) / CACHE)
