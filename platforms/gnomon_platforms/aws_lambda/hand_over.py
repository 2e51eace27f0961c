"""What is too large for Lambda goes through S3: batches, their results, and models' files.

    PREFIX/batches/CHANNEL/request, reply     read once and deleted; a rule of the bucket removes what a crash leaves behind
    PREFIX/models/SHA-256                     stays: every sandbox that begins reads it
    PREFIX/packages/SHA-256                   zips above what an API call takes

A sandbox reads and writes batches by addresses that S3 signs for one key and one hour, so that its role need not be able to.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError

from gnomon_core.errors import GnomonError
from gnomon_platforms.aws_lambda.clients import Clients
from gnomon_platforms.aws_lambda.errors import error_code, told

SIGNED_FOR_S = 3600
_ABSENT = frozenset({"404", "NoSuchKey", "NotFound"})


class HandOver:
    """A bucket, for any thread. Every method blocks."""

    def __init__(self, clients: Clients, bucket: str | None, prefix: str) -> None:
        self._clients = clients
        self.bucket = bucket
        self._prefix = prefix

    def key(self, channel: str, what: str) -> str:
        """Where a batch or its result lies while it is handed over."""
        return f"{self._prefix}/batches/{channel}/{what}"

    def give(self, key: str, data: bytes) -> str:
        """Store a batch and return the address to read it by."""
        with told("write batches to the bucket"):
            self._s3.put_object(Bucket=self.bucket, Key=key, Body=data)
            return self._signed("get_object", key)

    def address_for(self, key: str) -> str:
        """An address to write a result to."""
        with told("sign addresses in the bucket"):
            return self._signed("put_object", key)

    def take(self, key: str, size: int) -> bytes:
        """A result that was written.

        Raises:
            GnomonError: 503 `aws_…`, also where the object has another size: what is there is not this result.

        """
        with told("read results from the bucket"):
            data: bytes = self._s3.get_object(Bucket=self.bucket, Key=key)["Body"].read()
        if len(data) != size:
            raise GnomonError(503, "aws_refused", f"s3://{self.bucket}/{key} has {len(data)} bytes, not {size}.", "Try again.")
        return data

    def remove(self, keys: list[str]) -> None:
        """Delete what was handed over. What is not there is no error."""
        with told("delete batches from the bucket"):
            for key in keys:
                self._s3.delete_object(Bucket=self.bucket, Key=key)

    def keep_file(self, key: str, path: Path, sha256: str) -> None:
        """Have a file there under the key that its content names, by multipart upload where it is large."""
        with told("write models to the bucket"):
            if self._size(key) != path.stat().st_size:
                self._s3.upload_file(str(path), self.bucket, key, ExtraArgs={"Metadata": {"sha256": sha256}})

    def keep_package(self, data: bytes) -> str:
        """Have a package there; its key."""
        digest = hashlib.sha256(data)
        key = f"{self._prefix}/packages/{digest.hexdigest()}.zip"
        with told("write packages to the bucket"):
            if self._size(key) != len(data):
                checksum = base64.b64encode(digest.digest()).decode()
                self._s3.put_object(Bucket=self.bucket, Key=key, Body=data, ChecksumSHA256=checksum)
        return key

    def check(self) -> None:
        """Refuse a bucket that is not there, or not ours.

        Raises:
            GnomonError: 503 `bucket_missing` or `aws_…`.

        """
        if self.bucket is None:
            return
        with told(f"use the bucket {self.bucket}"):
            try:
                self._s3.head_bucket(Bucket=self.bucket)
            except ClientError as error:
                if error_code(error) in (*_ABSENT, "NoSuchBucket"):
                    text = f"There is no bucket {self.bucket!r}."
                    raise GnomonError(503, "bucket_missing", text, f"Make it: aws s3 mb s3://{self.bucket}") from None
                raise

    @property
    def _s3(self) -> Any:
        return self._clients.s3

    def _signed(self, operation: str, key: str) -> str:
        parameters = {"Bucket": self.bucket, "Key": key}
        address: str = self._s3.generate_presigned_url(operation, Params=parameters, ExpiresIn=SIGNED_FOR_S)
        return address

    def _size(self, key: str) -> int | None:
        try:
            return int(self._s3.head_object(Bucket=self.bucket, Key=key)["ContentLength"])
        except ClientError as error:
            if error_code(error) in _ABSENT:
                return None
            raise
