"""What the provider has: its functions and their replicas, asked for every two seconds, because nobody tells.

    list of each namespace ▶ functions that came, changed or went ▶ watchers, in the thread that asked
                           ▶ replicas ▶ how many slots there may be

While it cannot be reached, what was seen last is kept: its functions go on taking requests, which wait.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from http import HTTPStatus

from gnomon_core.errors import GnomonError
from gnomon_core.functions import DEFAULT_NAMESPACE, FunctionKey, FunctionSpec
from gnomon_platforms.provider.api import CREDENTIALS, ProviderApi
from gnomon_platforms.provider.documents import Listed, in_flight, read_listed
from gnomon_platforms.provider.options import ProviderOptions

MOST_PLACES = 512
"""Each is watched while nothing is under way there; what is more than that waits in the queue."""
REMEMBERED = 8
"""Changes of a function that are under way between us and whoever serves it."""

_LOG = logging.getLogger("gnomon.provider")
_WITHOUT_NAMESPACES = (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED)


class Catalog:
    """Any thread may ask and refresh it. `changed` and `moved` are called after each change of a function, of the namespaces."""

    def __init__(self, api: ProviderApi, options: ProviderOptions) -> None:
        self._api, self._options = api, options
        self._functions: Mapping[FunctionKey, Listed] = {}
        self._given: dict[FunctionKey, deque[FunctionSpec]] = {}
        self._namespaces: tuple[str, ...] = (DEFAULT_NAMESPACE,)
        self.has_namespaces = True
        """Whether the provider answers which namespaces there are. One that does not takes names as they are: `NAME.NAMESPACE`
        would be another function there."""
        self._refreshing = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.changed: list[Callable[[FunctionKey], None]] = []
        self.moved: list[Callable[[], None]] = []
        self.trouble: GnomonError | None = None
        """Why the provider could not be asked when it was last; None where it answered."""
        self.looks = 0
        """How often it has been asked, so that whoever keeps something made of it knows when that is old."""

    def start(self) -> None:
        """See what there is, and look again and again.

        Raises:
            GnomonError: 503 `provider_unreachable`, 502 `provider_…`.

        """
        self.refresh()
        self._thread = threading.Thread(target=self._run, name="provider", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no longer."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def functions(self) -> Mapping[FunctionKey, Listed]:
        """As they were seen last."""
        return self._functions

    def namespaces(self) -> tuple[str, ...]:
        return self._namespaces

    def of(self, key: FunctionKey) -> Listed | None:
        return self._functions.get(key)

    def holds(self, spec: FunctionSpec) -> bool:
        """Whether this very value came from the provider: now, or a moment ago."""
        return any(spec is given for given in self._given.get(spec.key, ()))

    def places(self, key: FunctionKey) -> int:
        """How many requests the function's replicas take at once, as far as we use that."""
        listed = self._functions.get(key)
        return 0 if listed is None else min(MOST_PLACES, listed.available * in_flight(listed.spec, self._options.in_flight))

    def refresh(self) -> None:
        """Ask the provider now.

        Raises:
            GnomonError: as `ProviderApi.call`.

        """
        with self._refreshing:
            try:
                namespaces = self._ask_namespaces()
                found = {key: listed for name in namespaces for key, listed in self._ask(name)}
            except GnomonError as error:
                self.lost(error)
                raise
            if self.trouble is not None:
                _LOG.warning("the provider answers again")
            before, self._functions = self._functions, found
            moved, self._namespaces = namespaces != self._namespaces, namespaces
            self.trouble, self.looks = None, self.looks + 1
            self._given = {key: self._given.get(key, deque(maxlen=REMEMBERED)) for key in found}
            for key, listed in found.items():
                if not self.holds(listed.spec):
                    self._given[key].append(listed.spec)
        for key in before.keys() | found.keys():
            old, new = before.get(key), found.get(key)
            if old is None or new is None or old.spec is not new.spec:
                self._tell(key)
        if moved:
            for told in tuple(self.moved):
                told()

    @property
    def away(self) -> bool:
        """Whether calls of functions have to wait for the provider. One that only refuses our credentials takes them."""
        return self.trouble is not None and self.trouble.code != CREDENTIALS

    def lost(self, error: GnomonError) -> None:
        """The provider did not answer as it should."""
        if self.trouble is None and self.looks:  # before the first look there is somebody who hears of it
            _LOG.warning("%s", error)
        self.trouble = error
        self.looks += 1

    def _tell(self, key: FunctionKey) -> None:
        for told in tuple(self.changed):
            told(key)

    def _run(self) -> None:
        while not self._ended.wait(self._options.poll_s):
            try:
                self.refresh()
            except GnomonError:
                continue  # it has been told
            except Exception:  # noqa: BLE001 - a document that nobody foresaw must not end the watch
                _LOG.exception("the provider's list could not be read")

    def _ask_namespaces(self) -> tuple[str, ...]:
        try:
            names = self._api.call("GET", "/system/namespaces", what="list its namespaces")
        except GnomonError as error:
            if error.status not in _WITHOUT_NAMESPACES:
                raise
            self.has_namespaces = False
            return (DEFAULT_NAMESPACE,)
        self.has_namespaces = True
        listed = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
        return tuple(sorted({*listed, DEFAULT_NAMESPACE}))

    def _ask(self, namespace: str) -> list[tuple[FunctionKey, Listed]]:
        documents = self._api.call("GET", "/system/functions", query={"namespace": namespace}, what="list its functions")
        found = []
        for document in documents if isinstance(documents, list) else ():
            name = document.get("name") if isinstance(document, dict) else None
            before = self._functions.get(FunctionKey(str(name), namespace))
            listed = read_listed(document, namespace, before)
            if listed is not None and listed.spec.key.namespace == namespace:
                found.append((listed.spec.key, listed))
        return found
