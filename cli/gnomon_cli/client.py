"""The gateway over HTTP: one small client that every command uses.

A call that fails becomes one `CommandFailed` with a sentence that says what to do: the gateway cannot be reached, a login is
missing, or the platform's own error document `{"error": {"code", "message", "hint"}}` in one line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

import urllib3
from urllib3.exceptions import HTTPError, LocationValueError, MaxRetryError, NewConnectionError, SSLError
from urllib3.exceptions import TimeoutError as HTTPTimeout

from gnomon_cli.credentials import Credentials
from gnomon_cli.output import CommandFailed
from gnomon_core.errors import cause_of

NO_TLS = ("wrong_version_number", "wrong version number", "record layer failure", "record_layer_failure")
"""What versions of OpenSSL say of an answer in plain HTTP."""
SHOWN_CHARACTERS = 1000
"""The most characters shown of an error without an error document: a traceback's last lines, but no page of HTML."""


class Gateway:
    """A client of one gateway: its address and our credentials."""

    def __init__(self, url: str, credentials: Credentials, *, verify_tls: bool = True, timeout_s: float = 60.0) -> None:
        self.url = url
        self._credentials = credentials
        self._timeout_s = timeout_s
        self._pool = _pool(url, verify_tls=verify_tls)

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | Iterable[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        authenticated: bool = True,
        stream: bool = False,
        patient: bool = False,
    ) -> urllib3.BaseHTTPResponse:
        """Send a request and return the answer, whatever its status. A body of chunks needs a `Content-Length` among the headers.

        `stream` leaves the body to be read piece by piece; `patient` waits for it without limit once connected.

        Raises:
            CommandFailed: No answer came.

        """
        url = f"{self.url}{path}" + (f"?{urlencode(query)}" if query else "")
        sent = {"User-Agent": "gnomon", **(headers or {})}
        if authenticated and self._credentials.authorization:
            sent["Authorization"] = self._credentials.authorization
        timeout = urllib3.Timeout(connect=self._timeout_s, read=None if patient else self._timeout_s)
        try:
            return self._pool.request(
                method, url, body=body, headers=sent, timeout=timeout, retries=False, redirect=False, preload_content=not stream
            )
        except HTTPError as error:
            raise self._unreachable(error) from None

    def json(self, method: str, path: str, *, query: Mapping[str, str] | None = None, document: bytes | None = None) -> Any:
        """Send a document and return the answered one; None where the answer is empty.

        Raises:
            CommandFailed: The answer is not 2xx or not JSON.

        """
        headers = {"Content-Type": "application/json"} if document is not None else {}
        answer = self.call(method, path, query=query, body=document, headers=headers)
        self.check(answer)
        if not answer.data:
            return None
        try:
            return json.loads(answer.data)
        except ValueError:
            raise CommandFailed(f"{self.url}{path} answered something that is not JSON.", "Is it a gateway?") from None

    def documents(self, answer: urllib3.BaseHTTPResponse) -> Iterator[dict[str, Any]]:
        """The JSON documents of a streamed answer, one a line, each as soon as its line is whole.

        Raises:
            CommandFailed: The connection broke, or a line is no document.

        """
        for line in self._lines(answer):
            document = _parsed(line)
            if not isinstance(document, dict):
                raise CommandFailed(
                    f"{self.url} answered a line that is no JSON document: {line[:100].decode(errors='replace')!r}."
                )
            yield document

    def pieces(self, answer: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
        """The body of a streamed answer, as it comes.

        Raises:
            CommandFailed: The connection broke.

        """
        try:
            yield from answer.stream(2**16)
        except HTTPError as error:
            raise CommandFailed(f"The connection to {self.url} broke: {cause_of(error)}.") from None
        finally:
            answer.close()

    def _lines(self, answer: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
        remainder = b""
        for piece in self.pieces(answer):
            *whole, remainder = (remainder + piece).split(b"\n")
            yield from (line for line in whole if line.strip())
        if remainder.strip():
            yield remainder

    def check(self, answer: urllib3.BaseHTTPResponse) -> None:
        """Raise `CommandFailed` unless the answer is 2xx."""
        if not 200 <= answer.status < 300:  # noqa: PLR2004 - HTTP's own classes
            raise CommandFailed(self.explain(answer))

    def explain(self, answer: urllib3.BaseHTTPResponse) -> str:
        """An answer that is an error, in one line."""
        if answer.status == 401:  # noqa: PLR2004
            return f"{self.url} asks for a login. Log in with `gnomon login -g {self.url} --password-stdin`."
        if (error := _error_of(answer)) is not None:
            sentence = f"{error['message']} {error.get('hint', '')}".strip()
            return f"{' '.join(sentence.split())} ({answer.status} {error['code']})"
        text = answer.data.decode("utf-8", "replace")
        shown = " ".join(text.split())[:SHOWN_CHARACTERS] or answer.headers.get("Location", "")
        return f"{self.url} answered {answer.status}" + (f": {shown}" if shown else ".")

    def _unreachable(self, error: HTTPError) -> CommandFailed:
        if isinstance(error, LocationValueError):
            return _no_address(self.url)
        cause = error.reason if isinstance(error, MaxRetryError) else error
        if isinstance(cause, SSLError) and any(reason in str(cause).lower() for reason in NO_TLS):
            return CommandFailed(f"{self.url} does not speak TLS.", f"Write http:{self.url.removeprefix('https:')}.")
        if isinstance(cause, SSLError):
            return CommandFailed(f"{self.url} has a certificate that cannot be trusted.", "If it is yours, pass --tls-no-verify.")
        if isinstance(cause, HTTPTimeout) and not isinstance(cause, NewConnectionError):
            return CommandFailed(f"{self.url} did not answer within {self._timeout_s:g} s.", "Give it more with --timeout.")
        return CommandFailed(
            f"Cannot reach {self.url}: {cause_of(error)}.", "Start it with `gnomon serve`, or name another gateway with -g."
        )


def error_code(answer: urllib3.BaseHTTPResponse) -> str:
    """The code of the platform's error document; empty for any other answer."""
    error = _error_of(answer)
    return "" if error is None else str(error["code"])


def _error_of(answer: urllib3.BaseHTTPResponse) -> dict[str, Any] | None:
    """The platform's error, which has a code and a message; None for any other answer."""
    document = _parsed(answer.data)
    error = document.get("error") if isinstance(document, dict) else None
    return error if isinstance(error, dict) and {"code", "message"} <= error.keys() else None


def _parsed(text: bytes) -> Any:
    """The parsed document; None for a text that is not JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def _pool(url: str, *, verify_tls: bool) -> urllib3.PoolManager:
    options: dict[str, Any] = {}
    if not verify_tls:
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        options["cert_reqs"] = "CERT_NONE"
    try:
        proxy = _proxy(url)
    except ValueError:  # brackets that are not closed
        raise _no_address(url) from None
    try:
        return urllib3.ProxyManager(proxy, **options) if proxy else urllib3.PoolManager(**options)
    except LocationValueError:
        message = f"The proxy that the environment names for {url} is not an address."
        raise CommandFailed(message, "Write it as http://HOST:PORT, or unset it.") from None


def _no_address(url: str) -> CommandFailed:
    return CommandFailed(f"{url} is not an address.", "Write it as http://HOST:PORT.")


def _proxy(url: str) -> str:
    """The proxy that the environment names for this address, and never one for an address of this machine."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if host in {"localhost", "::1"} or host.startswith("127."):
        return ""
    names = (f"{parts.scheme}_proxy", f"{parts.scheme}_proxy".upper())
    if not any(os.environ.get(name) for name in names):
        return ""
    from urllib.request import getproxies, proxy_bypass  # noqa: PLC0415 - 20 ms that only a proxied call needs

    found = "" if proxy_bypass(host) else getproxies().get(parts.scheme, "")
    return f"http://{found}" if found and "://" not in found else found
