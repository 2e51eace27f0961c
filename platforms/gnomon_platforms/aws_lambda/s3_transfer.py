"""Transfer through S3 of what is too large for Lambda: batches, their results, and models' files.

    PREFIX/batches/CHANNEL/NUMBER-request, NUMBER-reply     read once and deleted; a rule of the bucket removes what is left
    PREFIX/models/SHA-256                                   stays: every sandbox that begins reads it
    PREFIX/packages/SHA-256                                 zips above what an API call takes

A sandbox reads and writes batches by addresses that S3 signs for one key and one hour, so that its role need not be able to.

Deletions follow behind the answers, and nothing orders them with what a channel stores next; an Invoke that was given up may
write long after its timeout. So no number is used twice in a channel: each attempt stores its batch under its own,
and a key for a result serves until a result may lie there. A late write or deletion affects only its own key.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError

from gnomon_core.clock import Clock
from gnomon_core.errors import GnomonError
from gnomon_platforms.aws_lambda.client import Clients, aws_errors, error_code

SIGNED_FOR_S = 3600
ADDRESS_RENEWED_S = 900.0
"""Age in seconds at which a signed address is renewed: it is valid for an hour, the keys that sign it perhaps for less."""
_ABSENT = frozenset({"404", "NoSuchKey", "NotFound"})


class S3Transfer:
    """A bucket, for any thread. Every method blocks."""

    def __init__(self, clients: Clients, bucket: str | None, prefix: str) -> None:
        self._clients = clients
        self.bucket = bucket
        self._prefix = prefix

    def key(self, channel: str, number: int, suffix: str) -> str:
        """The key of a batch or its result during the transfer."""
        return f"{self._prefix}/batches/{channel}/{number}-{suffix}"

    def give(self, key: str, data: bytes) -> str:
        """Store a batch and return the address to read it by."""
        with aws_errors("write batches to the bucket"):
            self._s3.put_object(Bucket=self.bucket, Key=key, Body=data)
            return self._signed("get_object", key)

    def address_for(self, key: str) -> str:
        """An address to write a result to."""
        with aws_errors("sign addresses in the bucket"):
            return self._signed("put_object", key)

    def take(self, key: str, size: int) -> bytes:
        """A result that was written.

        Raises:
            GnomonError: 503 `aws_…`, also where the object has another size: what is there is not this result.

        """
        with aws_errors("read results from the bucket"):
            data: bytes = self._s3.get_object(Bucket=self.bucket, Key=key)["Body"].read()
        if len(data) != size:
            raise GnomonError(503, "aws_refused", f"s3://{self.bucket}/{key} has {len(data)} bytes, not {size}.", "Try again.")
        return data

    def remove(self, keys: list[str]) -> None:
        """Delete these keys. Missing keys are no error."""
        with aws_errors("delete batches from the bucket"):
            for key in keys:
                self._s3.delete_object(Bucket=self.bucket, Key=key)

    def keep_file(self, key: str, path: Path, sha256: str) -> None:
        """Upload a file unless it is stored, under a key from its content; large files by multipart upload."""
        with aws_errors("write models to the bucket"):
            if self._size(key) != path.stat().st_size:
                self._s3.upload_file(str(path), self.bucket, key, ExtraArgs={"Metadata": {"sha256": sha256}})

    def keep_package(self, data: bytes) -> str:
        """Upload a package unless it is stored. Returns its key."""
        digest = hashlib.sha256(data)
        key = f"{self._prefix}/packages/{digest.hexdigest()}.zip"
        with aws_errors("write packages to the bucket"):
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
        with aws_errors(f"use the bucket {self.bucket}"):
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


@dataclass(frozen=True, slots=True)
class ReplyKey:
    """The key at which a sandbox may store one result, and its signed address."""

    key: str
    address: str
    signed_s: float


class ReplyKeys:
    """Keys for the results of one channel, for one Invoke at a time. A key is reused only if nothing was stored under it.

    Signing an address takes 0.18 ms of CPU, and most results come back inside the answer: an unused key is given back.
    """

    def __init__(self, transfer: S3Transfer, channel: str, clock: Clock) -> None:
        self._transfer = transfer
        self._channel = channel
        self._clock = clock
        self._numbers = itertools.count(1)
        self._unused: ReplyKey | None = None

    def for_batch(self) -> str | None:
        """The key of an attempt's batch; None without a bucket."""
        return None if self._transfer.bucket is None else self._key("request")

    def for_result(self) -> ReplyKey | None:
        """An exclusive key for a result; None without a bucket.

        Raises:
            GnomonError: 503 `aws_…`: there are no keys to sign with.

        """
        if self._transfer.bucket is None:
            return None
        reply_key, self._unused = self._unused, None
        now_s = self._clock.now_s()
        if reply_key is None or now_s > reply_key.signed_s + ADDRESS_RENEWED_S:
            key = self._key("reply")
            reply_key = ReplyKey(key, self._transfer.address_for(key), now_s)
        return reply_key

    def give_back(self, reply_key: ReplyKey) -> None:
        """Return an unused key: nothing is stored there, and no Invoke that knows the address will store anything."""
        self._unused = reply_key

    def _key(self, suffix: str) -> str:
        return self._transfer.key(self._channel, next(self._numbers), suffix)
