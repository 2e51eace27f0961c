"""`gnomon version`, `ready`, `namespaces`, `login` and `logout`: the gateway itself.

Logins are kept in faas-cli's file, `~/.openfaas/config.yml`.
"""

from __future__ import annotations

import os
import sys
import time
from importlib.metadata import version as installed_version
from urllib.parse import quote

import click

from gnomon_cli.client import Gateway
from gnomon_cli.command import Command
from gnomon_cli.commands.functions import in_namespace
from gnomon_cli.credentials import basic, forget, remember
from gnomon_cli.options import Duration, Target, gateway_options, json_option, namespace_option
from gnomon_cli.output import CommandFailed, note, print_json
from gnomon_core.functions import PROBLEM

OK = 200


@click.command(
    cls=Command,
    examples="""
    gnomon version
    gnomon version --json
    """,
)
@gateway_options(timeout_s=5.0)
@json_option
def version(*, target: Target, as_json: bool) -> None:
    """Show our version and the gateway's.

    A gateway that does not answer is reported on standard error and is no failure.
    """
    ours = installed_version("gnomon")
    gateway = target.gateway()
    try:
        info = gateway.json("GET", "/system/info")
    except CommandFailed as error:
        note(error.message)
        info = None
    if as_json:
        print_json({"cli": {"version": ours}, "gateway": {"uri": gateway.url, **info} if info else None})
        return
    click.echo(f"gnomon {ours}")
    if info:
        provider, release = info.get("provider") or {}, info.get("version") or {}
        click.echo(f"gateway {release.get('release', '')} {release.get('sha', '')} at {gateway.url}")
        provided = provider.get("version") or {}
        name = provider.get("provider") or provider.get("name") or ""
        click.echo(f"provider {name} {provided.get('release', '')} ({provider.get('orchestration', '')})")


@click.command(
    cls=Command,
    examples="""
    gnomon namespaces
    """,
)
@gateway_options()
@json_option
def namespaces(*, target: Target, as_json: bool) -> None:
    """List the namespaces."""
    names = target.gateway().json("GET", "/system/namespaces") or []
    if as_json:
        print_json(names)
        return
    for name in names:
        click.echo(name)


@click.command(
    cls=Command,
    examples="""
    gnomon ready
    gnomon ready classify --attempts 30 --interval 200ms
    gnomon ready classify --timeout 10s
    """,
)
@click.argument("name", required=False, default="")
@gateway_options(timeout_help="Limit of the whole wait, whatever --attempts allows; default 60s.")
@namespace_option
@click.option("--attempts", type=click.IntRange(min=1), default=60, help="Number of attempts; default 60.")
@click.option("--interval", type=Duration(), default=1.0, metavar="DURATION", help="Pause between two attempts; default 1s.")
def ready(*, target: Target, name: str, namespace: str, attempts: int, interval: float) -> None:
    """Wait until the gateway, or a function, is ready."""
    gateway = target.gateway()
    subject = name or gateway.url
    began_s, problem = time.monotonic(), ""
    for attempt in range(attempts):
        try:
            problem = _not_ready(gateway, name, namespace)
        except CommandFailed as error:
            problem = error.message
        if not problem:
            click.echo(f"{subject} is ready.")
            return
        note(f"[{attempt + 1}/{attempts}] {problem}")
        left_s = began_s + target.timeout_s - time.monotonic()
        if left_s <= 0 or attempt + 1 == attempts:
            break
        time.sleep(min(interval, left_s))
    waited_s = time.monotonic() - began_s
    raise CommandFailed(f"{subject} is not ready after {waited_s:.1f} s: {problem}", "`gnomon logs` may say why." if name else "")


def _not_ready(gateway: Gateway, name: str, namespace: str) -> str:
    """The reason why the gateway or function is not ready; empty if it is ready."""
    if not name:
        answer = gateway.call("GET", "/healthz", authenticated=False)
        return "" if answer.status == OK else gateway.explain(answer)
    function = gateway.json("GET", f"/system/function/{quote(name)}", query=in_namespace(namespace))
    if function.get("availableReplicas", 0) > 0:
        return ""
    trouble = (function.get("annotations") or {}).get(PROBLEM)
    return f"{name} has no instance that is ready: {trouble}" if trouble else f"{name} has no instance that is ready."


UNAUTHORISED = 401


@click.command(
    cls=Command,
    examples="""
    gnomon login --password-stdin < .gnomon/secrets/basic-auth-password
    gnomon login -g https://gateway.example.com -u ada
    """,
)
@gateway_options(timeout_s=5.0)
@click.option("-u", "--username", default="admin", help="User; default admin.")
@click.option("-p", "--password", default="", help="Other users of this machine can see it; better from standard input.")
@click.option("-s", "--password-stdin", is_flag=True, help="Read the password from standard input.")
def login(*, target: Target, username: str, password: str, password_stdin: bool) -> None:
    """Check a user and password with a gateway, and keep them."""
    if password and password_stdin:
        raise click.UsageError("Give --password or --password-stdin, not both.")
    if password_stdin:
        password = sys.stdin.read()
    elif not password:
        password = click.prompt("Password", hide_input=True, err=True)
    password = password.strip()
    if not username or not password:
        raise CommandFailed("The user name or the password is empty.")
    url = target.url()
    if url.startswith("http://") and not url.startswith(("http://127.0.0.1", "http://localhost")):
        note("The password travels unencrypted; use https where you can.")
    gateway = Gateway(url, basic(username, password), verify_tls=target.verify_tls, timeout_s=target.timeout_s)
    answer = gateway.call("GET", "/system/functions")
    if answer.status == UNAUTHORISED:
        raise CommandFailed(f"{url} does not know this user and password.")
    gateway.check(answer)
    path = remember(url, username, password, os.environ)
    click.echo(f"Logged in to {url} as {username}; kept in {path}.")


@click.command(
    cls=Command,
    examples="""
    gnomon logout -g https://gateway.example.com
    """,
)
@gateway_options()
def logout(*, target: Target) -> None:
    """Forget a gateway's login."""
    url = target.url()
    if not forget(url, os.environ):
        raise CommandFailed(f"There is no login for {url}.")
    click.echo(f"Logged out of {url}.")
