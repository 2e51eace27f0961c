"""Users' secrets as faas-netes' users know them: a Secret of the function's namespace, with one entry that has its name.

Those that are made here bear the label `app.kubernetes.io/managed-by: openfaas`, and only those are listed, changed and removed.
A function may also name one that somebody else has made (`kubectl create secret`), unless it holds credentials of the cluster or
the token of another function's batch route.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence

from gnomon_core.errors import conflict
from gnomon_core.functions import FunctionKey
from gnomon_platforms.kubernetes.api import Document
from gnomon_platforms.kubernetes.errors import Refused, Unreachable, told
from gnomon_platforms.kubernetes.objects.manifests import secret
from gnomon_platforms.kubernetes.objects.names import MANAGED_LABEL, SECRET_LABEL, SECRET_OWNER
from gnomon_platforms.kubernetes.resources import SECRETS
from gnomon_platforms.kubernetes.writes import Create, Delete, Replace, Target, Write, Writer

CREDENTIALS = frozenset({"kubernetes.io/service-account-token", "bootstrap.kubernetes.io/token"})


class StoredSecrets:
    """The secrets of every namespace that we may look into."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    async def put(self, key: FunctionKey, value: bytes) -> None:
        """Keep a secret, or another value of it.

        Raises:
            GnomonError: 409 `foreign_secret`; what the API server refuses.

        """
        wanted = secret(key, value)

        def decide(seen: Document | None) -> Write | None:
            if seen is None:
                return Create(wanted)
            _require_ours(seen, key)
            return None if seen.get("data") == wanted["data"] else Replace({**seen, "data": wanted["data"]})

        await self._writer.settle(self._target(key), decide, f"store the secret {key.name}")

    async def get(self, key: FunctionKey) -> bytes | None:
        """A secret's value; None where there is none that a function may have.

        Raises:
            GnomonError: the API server cannot be asked.

        """
        found = await self._writer.settle(self._target(key), lambda _: None, f"read the secret {key.name}")
        return None if found is None or _is_private(found) else _value(found, key.name)

    async def delete(self, key: FunctionKey) -> bool:
        """Remove a secret; whether it was there.

        Raises:
            GnomonError: 409 `foreign_secret`; what the API server refuses.

        """
        there = False

        def decide(seen: Document | None) -> Write | None:
            nonlocal there
            if seen is None or _is_private(seen):
                return None
            _require_ours(seen, key)
            there = True
            return Delete()

        await self._writer.settle(self._target(key), decide, f"remove the secret {key.name}")
        return there

    async def names(self, namespace: str) -> Sequence[str]:
        """The names of a namespace's secrets that were made through OpenFaaS's API, sorted.

        Raises:
            GnomonError: the API server cannot be asked.

        """
        try:
            found = await self._writer.listed(SECRETS, namespace, f"{SECRET_LABEL}={SECRET_OWNER}")
        except (Refused, Unreachable) as error:
            raise told(error, f"list the secrets of {namespace}") from error
        return sorted(one["metadata"]["name"] for one in found)

    def _target(self, key: FunctionKey) -> Target:
        return Target(SECRETS, key.namespace, key.name)


def _is_private(found: Document) -> bool:
    """Whether no function may name it."""
    return found.get("type") in CREDENTIALS or MANAGED_LABEL in (found["metadata"].get("labels") or {})


def _value(found: Document, name: str) -> bytes:
    """The entry with the secret's name; of one that somebody else has made, its only entry, or all of them."""
    data = {entry: base64.b64decode(value) for entry, value in (found.get("data") or {}).items()}
    if name in data:
        return data[name]
    if len(data) == 1:
        return next(iter(data.values()))
    return json.dumps(found.get("data") or {}, sort_keys=True).encode()


def _require_ours(seen: Document, key: FunctionKey) -> None:
    if (seen["metadata"].get("labels") or {}).get(SECRET_LABEL) != SECRET_OWNER:
        raise conflict(
            "foreign_secret",
            f"{key.namespace} has a Secret {key.name} that was not made through OpenFaaS's API.",
            f"Label it {SECRET_LABEL}={SECRET_OWNER} to have it looked after here, or choose another name.",
        )
