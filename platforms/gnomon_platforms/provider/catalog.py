"""Catalogue of the provider's functions and replicas, polled every two seconds, because the provider has no watch.

    list of each namespace ▶ functions that came, changed or went ▶ watchers, in the thread that asked
                           ▶ replicas ▶ how many slots there may be

While the provider is unreachable, the last state is kept: its functions still accept requests, which wait.

A function that another client has deployed may carry settings that we would refuse. The function was served before us and is
served on: a setting that cannot be read is left out, with a warning.

`ProviderStore` is the store of functions: the provider itself, nothing is kept beside it. Functions have no versions here,
because an instance is a slot at the provider, which replaces its replicas itself. A secret's value never comes back, only whether
it exists.
"""

from __future__ import annotations

import base64
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from gnomon_core.clock import seconds_of
from gnomon_core.errors import GnomonError
from gnomon_core.functions import DEFAULT_NAMESPACE, FunctionKey, FunctionSpec, read_deployment
from gnomon_core.interfaces import StoredFunction, StoredNamespace
from gnomon_core.settings import PREFIX
from gnomon_platforms.provider.api import CREDENTIALS, Document, ProviderApi, ProviderOptions

SCALING = "openfaas"
"""The scaling policy of a provider's functions, which leaves the number of replicas to OpenFaaS."""
IN_FLIGHT_VARIABLE = "max_inflight"
"""Environment variable of of-watchdog: how many requests a replica takes at once; 0 is no limit."""
_SCALE_LABELS = "com.openfaas.scale."
_OF_STATUS = ("name", "invocationCount", "replicas", "availableReplicas", "createdAt", "usage")

_LOG = logging.getLogger("gnomon.provider")


@dataclass(frozen=True, slots=True)
class Listed:
    """A function as the provider lists it. `spec` is the same object as long as nothing of it changes."""

    spec: FunctionSpec
    created_at: float
    replicas: int
    available: int


def read_listed(document: object, namespace: str, previous: Listed | None) -> Listed | None:
    """Parse an entry of a provider's list; None if it is not a function. `previous` is the last parsed value."""
    if not isinstance(document, dict) or not isinstance(document.get("name"), str):
        return None
    deployment = {name: value for name, value in document.items() if value is not None and name not in _OF_STATUS}
    deployment = {"service": document["name"], **deployment}
    deployment["namespace"] = document.get("namespace") or namespace
    spec = previous.spec if previous is not None and previous.spec.raw == deployment else _read(deployment)
    if spec is None:
        return None
    created_at = seconds_of(document.get("createdAt"))
    return Listed(spec, created_at, _count(document, "replicas"), _count(document, "availableReplicas"))


def in_flight(spec: FunctionSpec, default: int) -> int:
    """The requests that a replica of the function gets at once."""
    if spec.settings.max_inflight is not None:
        return spec.settings.max_inflight
    said = spec.environment.get(IN_FLIGHT_VARIABLE, "")
    return int(said) if said.isascii() and said.isdigit() and int(said) > 0 else default


def _read(deployment: dict[str, Any]) -> FunctionSpec | None:
    name = f"{deployment['service']}.{deployment['namespace']}"
    try:
        spec = read_deployment(deployment)
    except GnomonError as error:
        _LOG.warning("function %s: invalid settings are ignored: %s", name, error)
        try:
            plain = read_deployment({**deployment, "labels": _without(deployment, "labels", _SCALE_LABELS),
                                     "annotations": _without(deployment, "annotations", PREFIX)})  # fmt: skip
        except GnomonError as worse:
            _LOG.warning("function %s is not served: %s", name, worse)
            return None
        return replace(plain, raw=deployment)
    if spec.settings.autoscaler != SCALING:
        if spec.settings.autoscaler_named:
            _LOG.warning("function %s: gnomon/autoscaler %s is ignored: the provider scales", name, spec.settings.autoscaler)
        spec = replace(spec, settings=replace(spec.settings, autoscaler=SCALING))
    return spec


def _without(deployment: Mapping[str, Any], field: str, prefix: str) -> object:
    texts = deployment.get(field)
    return {key: text for key, text in texts.items() if not key.startswith(prefix)} if isinstance(texts, dict) else texts


def _count(document: Mapping[str, Any], field: str) -> int:
    value = document.get(field)
    return max(0, int(value)) if isinstance(value, int | float) else 0


MOST_PLACES = 512
"""The most slots of a function: each idle slot watches its connection; requests beyond them wait in the queue."""
REMEMBERED = 8
"""Recent values kept of each function, for changes that the gateway has not processed yet."""
_WITHOUT_NAMESPACES = (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED)


class Catalog:
    """The cached functions of a provider; thread-safe. `changed` follows a function's change, `moved` a namespace's."""

    def __init__(self, api: ProviderApi, options: ProviderOptions) -> None:
        self._api, self._options = api, options
        self._functions: Mapping[FunctionKey, Listed] = {}
        self._recent_specs: dict[FunctionKey, deque[FunctionSpec]] = {}
        self._namespaces: tuple[str, ...] = (DEFAULT_NAMESPACE,)
        self.has_namespaces = True
        """Whether the provider lists namespaces. A provider that does not takes names literally: `NAME.NAMESPACE`
        would be another function there."""
        self._refreshing = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.changed: list[Callable[[FunctionKey], None]] = []
        self.moved: list[Callable[[], None]] = []
        self.trouble: GnomonError | None = None
        """The error of the last poll; None if the provider answered."""
        self.looks = 0
        """The number of polls, by which users of the catalogue know that a derived value is outdated."""

    def start(self) -> None:
        """Read the provider's state, and start to poll it.

        Raises:
            GnomonError: 503 `provider_unreachable`, 502 `provider_…`.

        """
        self.refresh()
        self._thread = threading.Thread(target=self._run, name="provider", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop polling."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def functions(self) -> Mapping[FunctionKey, Listed]:
        """The functions at the last poll."""
        return self._functions

    def namespaces(self) -> tuple[str, ...]:
        return self._namespaces

    def of(self, key: FunctionKey) -> Listed | None:
        return self._functions.get(key)

    def holds(self, spec: FunctionSpec) -> bool:
        """True if this very value came from the provider, now or in a recent poll."""
        return any(spec is recent for recent in self._recent_specs.get(spec.key, ()))

    def places(self, key: FunctionKey) -> int:
        """The requests that the function's replicas take at once, up to the configured maximum."""
        listed = self._functions.get(key)
        return 0 if listed is None else min(MOST_PLACES, listed.available * in_flight(listed.spec, self._options.in_flight))

    def refresh(self) -> None:
        """Poll the provider now.

        Raises:
            GnomonError: as `ProviderApi.call`.

        """
        with self._refreshing:
            try:
                namespaces = self._ask_namespaces()
                functions = {key: listed for name in namespaces for key, listed in self._ask(name)}
            except GnomonError as error:
                self.lost(error)
                raise
            if self.trouble is not None:
                _LOG.warning("the provider answers again")
            previous, self._functions = self._functions, functions
            moved, self._namespaces = namespaces != self._namespaces, namespaces
            self.trouble, self.looks = None, self.looks + 1
            self._recent_specs = {key: self._recent_specs.get(key, deque(maxlen=REMEMBERED)) for key in functions}
            for key, listed in functions.items():
                if not self.holds(listed.spec):
                    self._recent_specs[key].append(listed.spec)
        for key in previous.keys() | functions.keys():
            old, new = previous.get(key), functions.get(key)
            if old is None or new is None or old.spec is not new.spec:
                self._tell(key)
        if moved:
            for watcher in tuple(self.moved):
                watcher()

    @property
    def unreachable(self) -> bool:
        """True if calls must wait for the provider. A provider that only refuses our credentials still takes calls."""
        return self.trouble is not None and self.trouble.code != CREDENTIALS

    def lost(self, error: GnomonError) -> None:
        """Record that the provider failed to answer."""
        if self.trouble is None and self.looks:  # a failed first poll is raised to the caller
            _LOG.warning("the provider cannot be read: %s", error)
        self.trouble = error
        self.looks += 1

    def _tell(self, key: FunctionKey) -> None:
        for watcher in tuple(self.changed):
            watcher(key)

    def _run(self) -> None:
        while not self._ended.wait(self._options.poll_s):
            try:
                self.refresh()
            except GnomonError:
                continue  # it has been told
            except Exception:  # noqa: BLE001 - an unforeseen document must not end the watch
                _LOG.exception("Internal error while reading the provider's functions")

    def _ask_namespaces(self) -> tuple[str, ...]:
        try:
            names = self._api.call("GET", "/system/namespaces", operation="list its namespaces")
        except GnomonError as error:
            if error.status not in _WITHOUT_NAMESPACES:
                raise
            self.has_namespaces = False
            return (DEFAULT_NAMESPACE,)
        self.has_namespaces = True
        listed = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
        return tuple(sorted({*listed, DEFAULT_NAMESPACE}))

    def _ask(self, namespace: str) -> list[tuple[FunctionKey, Listed]]:
        documents = self._api.call("GET", "/system/functions", query={"namespace": namespace}, operation="list its functions")
        listed_functions = []
        for document in documents if isinstance(documents, list) else ():
            name = document.get("name") if isinstance(document, dict) else None
            previous = self._functions.get(FunctionKey(str(name), namespace))
            listed = read_listed(document, namespace, previous)
            if listed is not None and listed.spec.key.namespace == namespace:
                listed_functions.append((listed.spec.key, listed))
        return listed_functions


VERSION = 1
FUNCTIONS, SECRETS, NAMESPACES = "/system/functions", "/system/secrets", "/system/namespace"


class ProviderStore:
    """The `FunctionStore` (`gnomon_core.interfaces`) of a foreign provider's functions."""

    def __init__(self, api: ProviderApi, catalog: Catalog) -> None:
        self._api, self._catalog = api, catalog

    def put_function(self, stored: StoredFunction) -> None:
        """Deploy at the provider, as faas-cli does: PUT updates; POST creates if PUT finds no function."""
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
        """An empty value if a secret of that name exists (it is listed, or a function has it); None otherwise.

        A provider may let functions have secrets that it does not list, such as those which were made without it.
        """
        specs = (listed.spec for listed in self._catalog.functions().values())
        used = any(spec.key.namespace == key.namespace and key.name in spec.secrets for spec in specs)
        return b"" if used or key.name in self.secrets(key.namespace) else None

    def delete_secret(self, key: FunctionKey) -> bool:
        return self._delete(SECRETS, {"name": key.name, "namespace": key.namespace}, f"remove the secret {key}")

    def secrets(self, namespace: str) -> Sequence[str]:
        listed = self._api.call("GET", SECRETS, query={"namespace": namespace}, operation="list its secrets")
        named = [entry.get("name") for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
        return sorted(name for name in named if isinstance(name, str))

    def put_namespace(self, stored: StoredNamespace) -> None:
        document = {"name": stored.name, "labels": dict(stored.labels), "annotations": dict(stored.annotations)}
        operation = f"make the namespace {stored.name}"
        try:
            self._api.call("POST", NAMESPACES + "/", document, operation=operation)
        except GnomonError as error:
            if error.status != HTTPStatus.CONFLICT:
                raise
            self._api.call("PUT", f"{NAMESPACES}/{quote(stored.name)}", document, operation=operation)
        self._look()

    def delete_namespace(self, name: str) -> bool:
        there = self._delete(f"{NAMESPACES}/{quote(name)}", None, f"remove the namespace {name}")
        self._look()
        return there

    def namespaces(self) -> Sequence[StoredNamespace]:
        return [StoredNamespace(name) for name in self._catalog.namespaces() if name != DEFAULT_NAMESPACE]

    def watch(self, changed: Callable[[FunctionKey], None]) -> Callable[[], None]:
        return _registered(self._catalog.changed, changed)

    def watch_namespaces(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` after each change of the namespaces, until the returned function is called."""
        return _registered(self._catalog.moved, changed)

    def close(self) -> None:
        """Stop polling. Functions and secrets stay at the provider."""
        self._catalog.close()
        self._api.close()

    def _put_or_post(self, path: str, document: Document, operation: str) -> None:
        try:
            self._api.call("PUT", path, document, operation=operation)
        except GnomonError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            self._api.call("POST", path, document, operation=operation)

    def _delete(self, path: str, document: Document | None, operation: str) -> bool:
        try:
            self._api.call("DELETE", path, document, operation=operation)
        except GnomonError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return False
            raise
        return True

    def _look(self) -> None:
        """Poll after a change. The change holds even if this poll fails."""
        with suppress(GnomonError):
            self._catalog.refresh()


def _secret(key: FunctionKey, value: bytes) -> Document:
    """Bytes as base64; texts both ways, because some providers know only `value`."""
    document: dict[str, Any] = {"name": key.name, "namespace": key.namespace, "rawValue": base64.b64encode(value).decode()}
    with suppress(UnicodeDecodeError):
        document["value"] = value.decode()
    return document


def _registered(watchers: list[Any], changed: Callable[..., None]) -> Callable[[], None]:
    watchers.append(changed)

    def stop() -> None:
        with suppress(ValueError):
            watchers.remove(changed)

    return stop
