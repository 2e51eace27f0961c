"""A cluster as tests see it: through the official Python client, and with patience."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from kubernetes import client, config

from gnomon_platforms.kubernetes.connections import closing

Value = TypeVar("Value")


@dataclass(frozen=True)
class Cluster:
    """How to reach one: its kubeconfig, and a client made of it.

    The parts of its interface are not typed: tests write objects as plain dictionaries and know which fields the answers have.
    """

    kubeconfig: Path
    api: Any

    @property
    def core(self) -> Any:
        return client.CoreV1Api(self.api)

    @property
    def apps(self) -> Any:
        return client.AppsV1Api(self.api)

    @property
    def custom(self) -> Any:
        return client.CustomObjectsApi(self.api)


def reached(kubeconfig: Path) -> Cluster:
    """A cluster by its kubeconfig."""
    make: Any = config.new_client_from_config  # which says nothing of its types
    api = make(str(kubeconfig))
    closing(api.rest_client.pool_manager)
    return Cluster(kubeconfig, api)


def until(check: Callable[[], Value | None], what: str, limit_s: float = 60.0) -> Value:
    """The first true value of `check`. The limit decides how long a failure takes, so it is generous."""
    deadline_s = time.monotonic() + limit_s
    while not (value := check()):
        if time.monotonic() > deadline_s:
            raise AssertionError(f"after {limit_s:.0f} s still waiting for {what}")
        time.sleep(0.1)
    return value
