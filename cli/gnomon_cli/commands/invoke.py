"""`gnomon invoke`: call a function. The answer's body goes to standard output as it is, and as it comes."""

from __future__ import annotations

import hashlib
import hmac
import mimetypes
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlencode

import click

from gnomon_cli.client import Gateway
from gnomon_cli.command import Command
from gnomon_cli.options import Target, gateway_options, namespace_option
from gnomon_cli.output import CommandFailed, note, read_standard_input
from gnomon_cli.stack import load_stack
from gnomon_core.functions import DEFAULT_NAMESPACE

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
TEXT = "text/plain"
ACCEPTED = 202
_UNFIT = re.compile(r"[^\t\x20-\x7e\x80-\xff]")
"""Control characters, and what Latin-1 does not have."""


@click.command(
    cls=Command,
    examples="""
    echo Ada | gnomon invoke greet
    gnomon invoke classify -d @photo.jpg
    gnomon invoke env -m GET --query testing=1 -H "X-Token: 7"
    gnomon invoke report --async < big.json
    """,
)
@click.argument("name")
@gateway_options(timeout_s=300.0)
@namespace_option
@click.option("-d", "--data", default=None, metavar="TEXT|@FILE", help="Body of the request; default: standard input.")
@click.option(
    "-m", "--method", type=click.Choice(METHODS, case_sensitive=False), default="POST", help="HTTP method; default POST."
)
@click.option("-H", "--header", multiple=True, metavar="'KEY: VALUE'", help="Request header.")
@click.option("--query", multiple=True, metavar="KEY=VALUE", help="Query parameter.")
@click.option("--content-type", default="", metavar="TYPE", help=f"Default: the type of the -d file, else {TEXT}.")
@click.option("-a", "--async", "in_background", is_flag=True, help="Queue the request; its call id is printed.")
@click.option("--sign", default="", metavar="HEADER", help="Header for an HMAC-SHA256 of the body; with --key.")
@click.option("--key", default="", help="Key to sign with.")
def invoke(
    *,
    target: Target,
    name: str,
    namespace: str,
    data: str | None,
    method: str,
    header: tuple[str, ...],
    query: tuple[str, ...],
    content_type: str,
    in_background: bool,
    sign: str,
    key: str,
) -> None:
    """Call a function with what standard input or -d holds."""
    if bool(sign) != bool(key):
        raise click.UsageError("--sign and --key go together.")
    headers = headers_of(header)
    parameters = _parameters(query)
    body = read_standard_input() if data is None else body_of(data)
    if content_type or "content-type" not in {known.lower() for known in headers}:
        headers["Content-Type"] = content_type or _guessed(data)
    if sign:
        headers[sign] = "sha256=" + hmac.new(key.encode(), body, hashlib.sha256).hexdigest()
    gateway = target.gateway()
    path = f"/{'async-' if in_background else ''}function/{_address(target, name, namespace)}"
    path += f"?{urlencode(parameters)}" if parameters else ""
    _call(gateway, method.upper(), path, body, headers, in_background=in_background)


def _call(gateway: Gateway, method: str, path: str, body: bytes, headers: dict[str, str], *, in_background: bool) -> None:
    answer = gateway.call(method, path, body=body, headers=headers, authenticated=False, stream=True)
    if not 200 <= answer.status < 300:  # noqa: PLR2004 - HTTP's own classes
        answer.read(cache_content=True)
        gateway.check(answer)
    if in_background and answer.status == ACCEPTED:
        note("Queued.")
        click.echo(answer.headers.get("X-Call-Id", ""))
        return
    for piece in gateway.pieces(answer):
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()


def _address(target: Target, name: str, namespace: str) -> str:
    """`name.namespace`; the namespace of the flag, of the name itself, of the named stack file, or the default one."""
    if "." in name and not namespace:
        return name
    if target.yaml and not namespace:
        functions = load_stack(target.yaml, None).functions
        namespace = next((function.namespace for function in functions if function.name == name), "")
    return f"{name}.{namespace or DEFAULT_NAMESPACE}"


def body_of(data: str) -> bytes:
    """A text, or the file that `@` names."""
    if not data.startswith("@"):
        return data.encode()
    try:
        return Path(data[1:]).read_bytes()
    except OSError as error:
        raise CommandFailed(f"{data[1:]}: {error.strerror or error}.") from None


def _guessed(data: str | None) -> str:
    return (mimetypes.guess_type(data[1:])[0] if data and data.startswith("@") else None) or TEXT


def headers_of(texts: Iterable[str]) -> dict[str, str]:
    """`Key: Value`, or faas-cli's older `key=value`; a key that is given twice is joined by commas."""
    headers: dict[str, str] = {}
    for text in texts:
        key, colon, value = text.partition(":")
        if not colon:
            key, colon, value = text.partition("=")
        key, value = key.strip(), value.strip()
        if not (colon and key and value):
            raise click.UsageError(f"-H {text!r} is not 'Key: Value'.")
        if _UNFIT.search(text):
            raise click.UsageError(f"-H {text!r} has a character that no header can have: encode it, or send it in the body.")
        headers[key] = f"{headers[key]}, {value}" if key in headers else value
    return headers


def _parameters(texts: Iterable[str]) -> list[tuple[str, str]]:
    parameters = []
    for text in texts:
        key, equals, value = text.partition("=")
        if not (equals and key and value):
            raise click.UsageError(f"--query {text!r} is not KEY=VALUE.")
        parameters.append((key, value))
    return parameters
