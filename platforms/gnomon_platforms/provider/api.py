"""The provider's REST interface. Calls block; what it refuses becomes an error that says so, with the provider's own words.

401 ▶ 502 `provider_credentials`      no answer ▶ 503 `provider_unreachable`
400, 404, 409, … ▶ the same status, `provider_refused`      5xx ▶ 502 `provider_failed`
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, TypeAlias
from urllib.parse import quote, urlencode

import urllib3

from gnomon_core.errors import GnomonError, cause_of
from gnomon_core.functions import FunctionKey
from gnomon_platforms.provider.options import ProviderOptions

Document: TypeAlias = dict[str, Any]
TIMEOUT_S = 30.0
CONNECT_S = 3.0
CONNECTIONS = 16
SHOWN_CHARACTERS = 300
CREDENTIALS = "provider_credentials"


class ProviderApi:
    """Any thread may call it."""

    def __init__(self, options: ProviderOptions) -> None:
        self.url = options.url
        self.headers: Mapping[str, str] = {}
        if options.user:
            self.headers = urllib3.make_headers(basic_auth=f"{options.user}:{options.password}")
        self._pool = urllib3.PoolManager(maxsize=CONNECTIONS, block=False)

    def close(self) -> None:
        """Leave its connections."""
        self._pool.clear()

    def call(
        self, method: str, path: str, document: Document | None = None, *, query: Mapping[str, str] | None = None, what: str
    ) -> Any:
        """The document that is answered, None for an empty answer; `what` is being done, for people.

        Raises:
            GnomonError: as the module says.

        """
        url = self.url + path + (f"?{urlencode(query)}" if query else "")
        headers = {**self.headers, "Content-Type": "application/json"} if document is not None else dict(self.headers)
        body = None if document is None else json.dumps(document).encode()
        timeout = urllib3.Timeout(connect=CONNECT_S, read=TIMEOUT_S)
        try:
            answer = self._pool.request(method, url, body=body, headers=headers, timeout=timeout, retries=False, redirect=False)
        except urllib3.exceptions.HTTPError as error:
            raise unreachable(self.url, cause_of(error)) from None
        if not HTTPStatus.OK <= answer.status < HTTPStatus.MULTIPLE_CHOICES:
            raise refusal(answer.status, answer.data, what)
        try:
            return json.loads(answer.data) if answer.data.strip() else None
        except ValueError:
            raise GnomonError(
                502, "provider_failed", f"The provider answered no JSON when asked to {what}.", f"Is {self.url} a provider?"
            ) from None

    def status(self, key: FunctionKey) -> Document | None:
        """A function as it is now; None where there is none by that name."""
        try:
            found = self.call("GET", f"/system/function/{quote(key.name)}", query=_where(key), what=f"describe {key}")
        except GnomonError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise
        return found if isinstance(found, dict) else None

    def scale(self, key: FunctionKey, replicas: int) -> None:
        """Ask for so many replicas. Some read the namespace in the query, others in the body."""
        document = {"serviceName": key.name, "replicas": replicas, "namespace": key.namespace}
        path = f"/system/scale-function/{quote(key.name)}"
        self.call("POST", path, document, query={"namespace": key.namespace}, what=f"scale {key} to {replicas}")


def _where(key: FunctionKey) -> dict[str, str]:
    return {"namespace": key.namespace, "usage": "false"}


def unreachable(url: str, why: str) -> GnomonError:
    """503: the provider gives no answer."""
    return GnomonError(
        503,
        "provider_unreachable",
        f"The provider at {url} cannot be reached: {why}.",
        "Start it, or name another one with --provider-url.",
        retry_after_s=1.0,
    )


def refusal(status: int, body: bytes, what: str) -> GnomonError:
    """What the provider has against something, as it is told to our users."""
    if status == HTTPStatus.UNAUTHORIZED:
        return GnomonError(
            502,
            CREDENTIALS,
            f"The provider does not take our credentials (when asked to {what}).",
            "Name the folder of its basic-auth-user and basic-auth-password with --provider-credentials.",
        )
    said, hint = _said(body)
    if status < HTTPStatus.INTERNAL_SERVER_ERROR:
        return GnomonError(status, "provider_refused", f"The provider refused to {what}: {said or status}", hint)
    return GnomonError(502, "provider_failed", f"The provider failed to {what}: {status} {said}".strip(), hint or "See its log.")


def _said(body: bytes) -> tuple[str, str]:
    """The sentence of a refusal, and its hint if it is one of Gnomon's own."""
    text = " ".join(body.decode("utf-8", "replace").split())
    try:
        error = json.loads(body)["error"]
        return str(error["message"])[:SHOWN_CHARACTERS], str(error.get("hint", ""))[:SHOWN_CHARACTERS]
    except (ValueError, KeyError, TypeError):
        return text[:SHOWN_CHARACTERS], ""
