"""`gnomon secret`: what functions read at /var/openfaas/secrets. A value never comes back; only names are listed."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import click

from gnomon_cli.command import Command, option_group
from gnomon_cli.commands.functions import in_namespace
from gnomon_cli.options import Target, gateway_options, json_option, namespace_option
from gnomon_cli.output import CommandFailed, compact_json, print_json, read_standard_input

PATH = "/system/secrets"
CONFLICT = 409
_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")


@click.group()
def secret() -> None:
    """Create, list, update and remove secrets."""


value_options = option_group(
    click.option("--from-literal", default="", metavar="TEXT", help="The value itself; it stays in the shell's history."),
    click.option("--from-file", default="", metavar="FILE", help="Take the value from a file, which may be binary."),
    click.option("--trim/--no-trim", default=True, help="Strip white space at the value's ends; the default."),
)
"""Options for the source of a secret's value."""


@secret.command(
    cls=Command,
    examples="""
    gnomon secret create api-key --from-file key.txt
    gnomon secret create api-key --replace < key.txt
    """,
)
@click.argument("name")
@gateway_options()
@namespace_option
@value_options
@click.option("--replace", is_flag=True, help="Update the secret if it exists.")
def create(*, target: Target, name: str, namespace: str, from_literal: str, from_file: str, trim: bool, replace: bool) -> None:
    """Create a secret from standard input, a file or a literal."""
    if not _NAME.fullmatch(name):
        raise click.UsageError(
            f"{name!r} is no name for a secret: lower-case letters, digits, '-' and '.', a letter or digit at its ends."
        )
    document = _document(name, namespace, from_literal, from_file, trim=trim)
    gateway = target.gateway()
    headers = {"Content-Type": "application/json"}
    answer = gateway.call("POST", PATH, body=document, headers=headers)
    if answer.status == CONFLICT and replace:
        answer = gateway.call("PUT", PATH, body=document, headers=headers)
    gateway.check(answer)
    click.echo(f"Created: {name}.")


@secret.command(
    cls=Command,
    examples="""
    gnomon secret update api-key --from-file key.txt
    """,
)
@click.argument("name")
@gateway_options()
@namespace_option
@value_options
def update(*, target: Target, name: str, namespace: str, from_literal: str, from_file: str, trim: bool) -> None:
    """Give a secret another value; functions see it after their next deploy."""
    target.gateway().json("PUT", PATH, document=_document(name, namespace, from_literal, from_file, trim=trim))
    click.echo(f"Updated: {name}.")


@secret.command(
    "list",
    cls=Command,
    examples="""
    gnomon secret list
    gnomon secret list --json
    """,
)
@gateway_options()
@namespace_option
@json_option
def list_secrets(*, target: Target, namespace: str, as_json: bool) -> None:
    """List the names of the secrets."""
    found = target.gateway().json("GET", PATH, query=in_namespace(namespace)) or []
    if as_json:
        print_json(found)
        return
    for entry in found:
        click.echo(entry["name"])


@secret.command(
    cls=Command,
    examples="""
    gnomon secret remove api-key
    """,
)
@click.argument("name")
@gateway_options()
@namespace_option
def remove(*, target: Target, name: str, namespace: str) -> None:
    """Remove a secret."""
    target.gateway().json("DELETE", PATH, document=compact_json({"name": name} | in_namespace(namespace)))
    click.echo(f"Removed: {name}.")


def _document(name: str, namespace: str, literal: str, file: str, *, trim: bool) -> bytes:
    """OpenFaaS's Secret; a file is sent twice, as text and as its exact bytes, which win."""
    if literal and file:
        raise click.UsageError("Give --from-literal or --from-file, not both.")
    if file:
        try:
            data = Path(file).read_bytes()
        except OSError as error:
            raise CommandFailed(f"{file}: {error.strerror or error}.") from None
    else:
        data = literal.encode() if literal else read_standard_input()
    text = data.decode("utf-8", "replace")
    text = text.strip() if trim else text
    if not text:
        raise CommandFailed("The secret is empty.", "Give it by --from-file, --from-literal or standard input.")
    raw = {"rawValue": base64.b64encode(data).decode()} if file else {}
    return compact_json({"name": name} | in_namespace(namespace) | {"value": text} | raw)
