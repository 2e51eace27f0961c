"""Options that many commands share, with faas-cli's names: which gateway, which stack file, which form of output.

Which gateway a command talks to, decided as faas-cli decides it.

The `--gateway` flag, then the stack file's `provider.gateway` unless that is the usual address, then OPENFAAS_URL, then
http://127.0.0.1:8080. The address is lower-cased, loses a slash at its end and gains http:// where it names no scheme.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from gnomon_cli.client import Gateway
from gnomon_cli.command import option_group
from gnomon_cli.credentials import find
from gnomon_cli.output import CommandFailed
from gnomon_cli.stack import Stack, default_file, load_stack, select
from gnomon_core.addresses import unbracketed
from gnomon_core.units import parse_duration_s, parse_memory_bytes

F = TypeVar("F", bound=Callable[..., Any])


class Duration(click.ParamType[float]):
    """`500ms`, `30s`, `5m`, `1h30m`, or seconds as a number."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, (int, float)):
            return float(value)
        try:
            return parse_duration_s(value)
        except ValueError:
            self.fail(f"{value!r} is not a duration such as 30s or 5m.", param, ctx)


class Bytes(click.ParamType[int]):
    """`128Mi`, `1G` or a number of bytes, between two bounds."""

    name = "bytes"

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            found = value if isinstance(value, int) else parse_memory_bytes(value)
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)
        if not self._least <= found <= self._most:
            self.fail(f"{value} is not between {self._least >> 20}Mi and {self._most >> 20}Mi.", param, ctx)
        return found


class Host(click.ParamType[str]):
    """A host name or an address. An IPv6 address may have brackets; the value has none."""

    name = "host"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return unbracketed(value)
        except ValueError:
            self.fail(f"{value!r} is no host such as 10.0.0.1, fd00::1 or a name; a port is said apart.", param, ctx)


class NewFile(click.Path):
    """A file to be written when the work is done. Whether that is possible is checked before the work begins."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, writable=True, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        folder = path.parent
        if not path.exists() and not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
            self.fail(f"{str(folder)!r} is no folder that can be written to.", param, ctx)
        return path


@dataclass(frozen=True, slots=True)
class Target:
    """The gateway and the stack file that the command line names."""

    flag: str
    token: str
    verify_tls: bool
    timeout_s: float
    yaml: str
    filter: str = ""
    regex: str = ""
    envsubst: bool = True

    def stack(self) -> Stack | None:
        """The chosen functions of the stack file; None where no file is named and none lies in the working directory."""
        name = self.yaml or default_file(Path.cwd())
        if not name:
            return None
        return select(load_stack(name, os.environ if self.envsubst else None), self.filter, self.regex)

    def url(self, stack: Stack | None = None) -> str:
        """The gateway's address, without a login."""
        return gateway_url(self.flag, stack.gateway if stack else self._stack_gateway(), os.environ)

    def gateway(self, stack: Stack | None = None) -> Gateway:
        """The client for the gateway, with the login that is kept for it."""
        url = self.url(stack)
        return Gateway(url, find(url, self.token, os.environ), verify_tls=self.verify_tls, timeout_s=self.timeout_s)

    def _stack_gateway(self) -> str:
        """The gateway in the stack file; a file that was not named is used only if it can be read."""
        name = self.yaml or default_file(Path.cwd())
        if self.flag or not name:
            return ""
        try:
            return load_stack(name, os.environ).gateway
        except CommandFailed:
            if self.yaml:
                raise
            return ""


def server_options(function: F) -> F:
    """-g, -k, --tls-no-verify, --timeout as one `target`, of a command that is about this machine unless -g names a server."""

    @functools.wraps(function)
    def wrapped(*args: Any, gateway: str, token: str, tls_no_verify: bool, timeout: float, **options: Any) -> Any:
        gateway = gateway or click.get_current_context().find_root().params.get("gateway", "")
        target = Target(gateway, token, not tls_no_verify, timeout, "") if gateway else None
        return function(*args, target=target, **options)

    gateway = click.option(
        "-g", "--gateway", default="", metavar="URL", help="Server whose models are used, instead of a folder's."
    )
    return cast("F", option_group(gateway, *_connection_options(60.0))(wrapped))


def gateway_options(*, functions: bool = False, timeout_s: float = 60.0, timeout_help: str = "") -> Callable[[F], F]:
    """-g, -f, -k, --tls-no-verify, --timeout; with `functions` also --filter, --regex, --envsubst: all as one `target`."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def wrapped(*args: Any, gateway: str, token: str, tls_no_verify: bool, timeout: float, yaml: str, **options: Any) -> Any:
            gateway = gateway or click.get_current_context().find_root().params.get("gateway", "")
            chosen = {name: options.pop(name) for name in ("filter", "regex", "envsubst") if functions}
            return function(*args, target=Target(gateway, token, not tls_no_verify, timeout, yaml, **chosen), **options)

        options = [
            click.option(
                "-g", "--gateway", default="", metavar="URL", help="Gateway; default: stack file, OPENFAAS_URL, 127.0.0.1:8080."
            ),
            click.option(
                "-f", "--yaml", default="", metavar="FILE", help="Stack file or its URL; default: stack.yaml or stack.yml here."
            ),
            *_connection_options(timeout_s, timeout_help),
        ]
        if functions:
            options += [
                click.option(
                    "--filter", default="", metavar="WILDCARD", help='Only functions whose name matches, as in "img-*".'
                ),
                click.option(
                    "--regex", default="", metavar="REGEX", help="Only functions whose name matches the regular expression."
                ),
                click.option("--envsubst/--no-envsubst", default=True, help="Substitute ${VARIABLES} in the stack file."),
            ]
        return cast("F", option_group(*options)(wrapped))

    return decorate


def _connection_options(timeout_s: float, timeout_help: str = "") -> list[Callable[[F], F]]:
    """-k, --tls-no-verify, --timeout."""
    return [
        click.option("-k", "--token", default="", metavar="JWT", help="Token, instead of the stored login."),
        click.option("--tls-no-verify", is_flag=True, help="Do not check the gateway's certificate."),
        click.option(
            "--timeout",
            type=Duration(),
            default=timeout_s,
            metavar="DURATION",
            help=timeout_help or f"For each call; default {timeout_s:g}s.",
        ),
    ]


policy_option = click.option(
    "--policy", "policies", multiple=True, metavar="NAME", help="A policy of an installed package that functions may name."
)


def namespace_option(function: F) -> F:
    """-n."""
    return click.option("-n", "--namespace", default="", metavar="NAME", help="Namespace of the function.")(function)


def json_option(function: F) -> F:
    """-j, given to the command as `as_json`."""
    return click.option("-j", "--json", "as_json", is_flag=True, help="Print JSON.")(function)


DEFAULT_GATEWAY = "http://127.0.0.1:8080"
URL_VARIABLE = "OPENFAAS_URL"


def gateway_url(flag: str, stack: str, environment: Mapping[str, str]) -> str:
    """The gateway's address. A flag always wins, also one that names the usual address."""
    named = stack if stack != DEFAULT_GATEWAY else ""
    url = (flag or named or environment.get(URL_VARIABLE, "") or DEFAULT_GATEWAY).rstrip("/").lower()
    return url if "://" in url else f"http://{url}"
