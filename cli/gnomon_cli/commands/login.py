"""`gnomon login` and `logout`: the same file as faas-cli's, `~/.openfaas/config.yml`."""

from __future__ import annotations

import os
import sys

import click

from gnomon_cli.client import Gateway
from gnomon_cli.command import Command
from gnomon_cli.credentials import basic, forget, remember
from gnomon_cli.errors import CommandFailed
from gnomon_cli.options import Target, gateway_options
from gnomon_cli.output import note

UNAUTHORISED = 401


@click.command(
    cls=Command,
    examples="""
    gnomon login --password-stdin < .gnomon/secrets/basic-auth-password
    gnomon login -g https://gateway.example.com -u ada
    """,
)
@gateway_options(timeout_s=5.0)
@click.option("-u", "--username", default="admin", help="Default admin.")
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
