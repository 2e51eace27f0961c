"""`gnomon version`, `namespaces` and `ready`: the gateway itself."""

from __future__ import annotations

import time
from importlib.metadata import version as installed_version
from urllib.parse import quote

import click

from gnomon_cli.client import Gateway
from gnomon_cli.command import Command
from gnomon_cli.commands.functions import in_namespace
from gnomon_cli.errors import CommandFailed
from gnomon_cli.options import Duration, Target, gateway_options, json_option, namespace_option
from gnomon_cli.output import note, print_json
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

    A gateway that does not answer is told on standard error and is no failure.
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
@gateway_options(timeout_help="For the whole wait, whatever --attempts allows; default 60s.")
@namespace_option
@click.option("--attempts", type=click.IntRange(min=1), default=60, help="How often to ask; default 60.")
@click.option("--interval", type=Duration(), default=1.0, metavar="DURATION", help="Between two attempts; default 1s.")
def ready(*, target: Target, name: str, namespace: str, attempts: int, interval: float) -> None:
    """Wait until the gateway, or a function, is ready."""
    gateway = target.gateway()
    what = name or gateway.url
    began_s, problem = time.monotonic(), ""
    for attempt in range(attempts):
        try:
            problem = _not_ready(gateway, name, namespace)
        except CommandFailed as error:
            problem = error.message
        if not problem:
            click.echo(f"{what} is ready.")
            return
        note(f"[{attempt + 1}/{attempts}] {problem}")
        left_s = began_s + target.timeout_s - time.monotonic()
        if left_s <= 0 or attempt + 1 == attempts:
            break
        time.sleep(min(interval, left_s))
    waited_s = time.monotonic() - began_s
    raise CommandFailed(f"{what} is not ready after {waited_s:.1f} s: {problem}", "`gnomon logs` may say why." if name else "")


def _not_ready(gateway: Gateway, name: str, namespace: str) -> str:
    """Why it is not ready; empty when it is."""
    if not name:
        answer = gateway.call("GET", "/healthz", authenticated=False)
        return "" if answer.status == OK else gateway.explain(answer)
    function = gateway.json("GET", f"/system/function/{quote(name)}", query=in_namespace(namespace))
    if function.get("availableReplicas", 0) > 0:
        return ""
    trouble = (function.get("annotations") or {}).get(PROBLEM)
    return f"{name} has no instance that is ready: {trouble}" if trouble else f"{name} has no instance that is ready."
