"""boto3's clients, each made once: their making reads service descriptions from disk, and their connections are pooled.

Credentials, region and endpoint come from where boto3 looks for them (AWS_PROFILE, AWS_REGION, AWS_ENDPOINT_URL, a role …).

botocore's own retries are off for Invoke: they repeat what timed out or ended in a 500, and so might execute a batch twice. And
because a client's read timeout is a setting of the client, there is a client for each power of two of seconds.
"""

from __future__ import annotations

import math
import threading
from typing import Any

import boto3
from botocore.config import Config

from gnomon_platforms.aws_lambda.errors import told

CONNECT_TIMEOUT_S = 5.0
LONGEST_S = 1024
"""Above Lambda's own bound of 900 s."""


class Clients:
    """The clients that the platform uses, for any thread. `connections` is how many each keeps open."""

    def __init__(self, connections: int) -> None:
        with told("reach Lambda"):
            self._session = boto3.Session()
        self._connections = connections
        self._made: dict[tuple[str, int], Any] = {}
        self._lock = threading.Lock()

    @property
    def region(self) -> str:
        return str(self.control.meta.region_name)

    @property
    def control(self) -> Any:
        """Lambda, for everything but Invoke: such calls can be repeated, so botocore does."""
        return self._client("lambda", 60, {"retries": {"mode": "adaptive", "total_max_attempts": 8}})

    @property
    def s3(self) -> Any:
        """S3, whose operations can be repeated. Addresses that it signs are of the version that every region takes."""
        return self._client("s3", 60, {"retries": {"mode": "standard"}, "signature_version": "s3v4"})

    @property
    def sts(self) -> Any:
        return self._client("sts", 10, {"retries": {"mode": "standard"}})

    @property
    def cloudwatch(self) -> Any:
        return self._client("cloudwatch", 30, {"retries": {"mode": "standard"}})

    def invoking(self, patience_s: float) -> Any:
        """Lambda, for an Invoke that is given up after `patience_s` at the earliest and twice that at the latest."""
        timeout_s = min(LONGEST_S, 2 ** max(0, math.ceil(math.log2(max(patience_s, 1.0)))))
        return self._client("lambda", timeout_s, {"retries": {"total_max_attempts": 1}, "tcp_keepalive": True})

    def _client(self, service: str, timeout_s: int, settings: dict[str, Any]) -> Any:
        key = (f"{service} {sorted(settings)}", timeout_s)
        with self._lock:
            if key not in self._made:
                config = Config(
                    connect_timeout=CONNECT_TIMEOUT_S, read_timeout=timeout_s, max_pool_connections=self._connections, **settings
                )
                with told(f"use {service}"):
                    self._made[key] = self._session.client(service, config=config)
            return self._made[key]
