"""`gnomon logs`: the lines that a function's instances wrote, as they are written."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from gnomon_cli.command import Command
from gnomon_cli.options import Duration, Target, gateway_options, namespace_option
from gnomon_cli.output import print_line
from gnomon_cli.stack import is_url
from gnomon_core.clock import rfc3339, utc_now_s

FORMATS = ("plain", "keyvalue", "json")


class _Logs(Command):
    """`-f` names a stack file as with every command; where no file follows it is kubectl's and docker's "follow", our default."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        following = [*args[1:], ""]
        kept = [arg for arg, value in zip(args, following, strict=True) if arg != "-f" or is_url(value) or Path(value).is_file()]
        return super().parse_args(ctx, kept)


@click.command(
    cls=_Logs,
    examples="""
    gnomon logs classify
    gnomon logs classify --since 10m --tail=false
    gnomon logs classify --lines 5 --json | jq .text
    """,
)
@click.argument("name")
@gateway_options()
@namespace_option
@click.option("--since", type=Duration(), default=None, metavar="DURATION", help="Lines newer than this, such as 10m.")
@click.option(
    "--since-time", type=click.DateTime(["%Y-%m-%dT%H:%M:%S%z"]), default=None, help="Lines newer than a time (RFC 3339)."
)
@click.option("--lines", default=-1, help="Number of last lines of each instance's log; default all that are kept.")
@click.option("-t", "--tail/--no-tail", default=True, help="Go on with new lines until Ctrl-C; the default.")
@click.option("-o", "--output", type=click.Choice(FORMATS), default="plain", help="Format; default plain.")
@click.option("-j", "--json", "as_json", is_flag=True, help="Same as --output json.")
@click.option("--name", "with_name", is_flag=True, help="Print the function's name with each line.")
@click.option("--instance", "with_instance", is_flag=True, help="Print the instance with each line.")
@click.option("--time/--no-time", "with_time", default=True, help="Print the time of each line; the default.")
def logs(
    *,
    target: Target,
    name: str,
    namespace: str,
    since: float | None,
    since_time: datetime | None,
    lines: int,
    tail: bool,
    output: str,
    as_json: bool,
    with_name: bool,
    with_instance: bool,
    with_time: bool,
) -> None:
    """Follow a function's log."""
    query = {"follow": str(tail).lower(), "name": name}
    if namespace:
        query["namespace"] = namespace
    if since_time or since:
        begin_s = since_time.timestamp() if since_time else utc_now_s() - (since or 0.0)
        query["since"] = rfc3339(begin_s, "seconds")
    if lines:
        query["tail"] = str(lines)
    gateway = target.gateway()
    answer = gateway.call("GET", "/system/logs", query=query, stream=True, patient=tail)
    if answer.status != 200:  # noqa: PLR2004
        answer.read(cache_content=True)
        gateway.check(answer)
    shown = {"timestamp": with_time, "name": with_name, "instance": with_instance}
    for message in gateway.documents(answer):
        if as_json or output == "json":
            print_line(message)
        elif output == "keyvalue":
            click.echo(_key_value(message, shown))
        else:
            click.echo(_plain(message, shown))


def _plain(message: Mapping[str, Any], shown: Mapping[str, bool]) -> str:
    parts = [
        f"({message[key]})" if key == "instance" else str(message[key])
        for key, wanted in shown.items()
        if wanted and message.get(key)
    ]
    return " ".join([*parts, str(message.get("text", ""))]).rstrip("\n")


def _key_value(message: Mapping[str, Any], shown: Mapping[str, bool]) -> str:
    keys = [*(key for key, wanted in shown.items() if wanted), "text"]
    return " ".join(f'{key}="{str(message.get(key, "")).rstrip(chr(10))}"' for key in keys)
