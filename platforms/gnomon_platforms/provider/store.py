"""The store of functions that is the provider: nothing is kept beside it.

A version is nobody's here, because what we call instances are ways to the provider, which replaces its replicas itself. A
secret's value never comes back: what is known is whether there is one.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from gnomon_core.errors import GnomonError
from gnomon_core.functions import DEFAULT_NAMESPACE, FunctionKey
from gnomon_core.interfaces import StoredFunction, StoredNamespace
from gnomon_platforms.provider.api import Document, ProviderApi
from gnomon_platforms.provider.catalog import Catalog

VERSION = 1
FUNCTIONS, SECRETS, NAMESPACES = "/system/functions", "/system/secrets", "/system/namespace"


class ProviderStore:
    """See `gnomon_core.interfaces.FunctionStore`."""

    def __init__(self, api: ProviderApi, catalog: Catalog) -> None:
        self._api, self._catalog = api, catalog

    def put_function(self, stored: StoredFunction) -> None:
        """Deploy it there, as faas-cli does: changed by PUT, added by POST where PUT does not know it."""
        spec = stored.spec
        if self._catalog.holds(spec):
            return  # it came from there
        document = {**spec.raw, "service": spec.key.name, "namespace": spec.key.namespace}
        self._put_or_post(FUNCTIONS, document, f"deploy {spec.key}")
        self._look()

    def delete_function(self, key: FunctionKey) -> bool:
        there = self._delete(FUNCTIONS, {"functionName": key.name, "namespace": key.namespace}, f"remove {key}")
        self._look()
        return there

    def functions(self) -> Sequence[StoredFunction]:
        listed = self._catalog.functions()
        return [StoredFunction(listed[key].spec, VERSION, listed[key].created_at) for key in sorted(listed)]

    def put_secret(self, key: FunctionKey, value: bytes) -> None:
        self._put_or_post(SECRETS, _secret(key, value), f"store the secret {key}")

    def secret(self, key: FunctionKey) -> bytes | None:
        """Nothing that could be read, where there is one by that name: where it is listed, or a function has it.

        A provider may let functions have secrets that it does not list, such as those which were made without it.
        """
        specs = (listed.spec for listed in self._catalog.functions().values())
        used = any(spec.key.namespace == key.namespace and key.name in spec.secrets for spec in specs)
        return b"" if used or key.name in self.secrets(key.namespace) else None

    def delete_secret(self, key: FunctionKey) -> bool:
        return self._delete(SECRETS, {"name": key.name, "namespace": key.namespace}, f"remove the secret {key}")

    def secrets(self, namespace: str) -> Sequence[str]:
        listed = self._api.call("GET", SECRETS, query={"namespace": namespace}, what="list its secrets")
        named = [one.get("name") for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
        return sorted(name for name in named if isinstance(name, str))

    def put_namespace(self, stored: StoredNamespace) -> None:
        document = {"name": stored.name, "labels": dict(stored.labels), "annotations": dict(stored.annotations)}
        what = f"make the namespace {stored.name}"
        try:
            self._api.call("POST", NAMESPACES + "/", document, what=what)
        except GnomonError as error:
            if error.status != HTTPStatus.CONFLICT:
                raise
            self._api.call("PUT", f"{NAMESPACES}/{quote(stored.name)}", document, what=what)
        self._look()

    def delete_namespace(self, name: str) -> bool:
        there = self._delete(f"{NAMESPACES}/{quote(name)}", None, f"remove the namespace {name}")
        self._look()
        return there

    def namespaces(self) -> Sequence[StoredNamespace]:
        return [StoredNamespace(name) for name in self._catalog.namespaces() if name != DEFAULT_NAMESPACE]

    def watch(self, changed: Callable[[FunctionKey], None]) -> Callable[[], None]:
        return _kept(self._catalog.changed, changed)

    def watch_namespaces(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` after each change of the namespaces, until the returned function is called."""
        return _kept(self._catalog.moved, changed)

    def close(self) -> None:
        """Look no longer. Everything stays at the provider."""
        self._catalog.close()
        self._api.close()

    def _put_or_post(self, path: str, document: Document, what: str) -> None:
        try:
            self._api.call("PUT", path, document, what=what)
        except GnomonError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            self._api.call("POST", path, document, what=what)

    def _delete(self, path: str, document: Document | None, what: str) -> bool:
        try:
            self._api.call("DELETE", path, document, what=what)
        except GnomonError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return False
            raise
        return True

    def _look(self) -> None:
        """See what has been done. It is done all the same where the provider cannot be asked just now."""
        with suppress(GnomonError):
            self._catalog.refresh()


def _secret(key: FunctionKey, value: bytes) -> Document:
    """Bytes as base64; texts both ways, because some providers know only `value`."""
    document: dict[str, Any] = {"name": key.name, "namespace": key.namespace, "rawValue": base64.b64encode(value).decode()}
    with suppress(UnicodeDecodeError):
        document["value"] = value.decode()
    return document


def _kept(watchers: list[Any], changed: Callable[..., None]) -> Callable[[], None]:
    watchers.append(changed)

    def stop() -> None:
        with suppress(ValueError):
            watchers.remove(changed)

    return stop
