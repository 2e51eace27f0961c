"""`gnomon policies` and `decisions`: which policies a function may name, and what they did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import click

from gnomon_cli.command import Command
from gnomon_cli.options import Target, gateway_options, json_option, namespace_option
from gnomon_cli.output import print_json

_KINDS = (("scaling", "gnomon/autoscaler"), ("scheduling", "gnomon/scheduler"))


@click.command(
    cls=Command,
    examples="""
    gnomon policies
    gnomon deploy -f stack.yml --filter classify --annotation gnomon/autoscaler=k-lv
    """,
)
@gateway_options()
@json_option
def policies(*, target: Target, as_json: bool) -> None:
    """List the scaling and scheduling policies that a function's annotations may name."""
    known = target.gateway().json("GET", "/gnomon/policies")
    if as_json:
        print_json(known)
        return
    width = max((len(policy["name"]) for kind, _ in _KINDS for policy in known[kind]), default=0)
    for kind, annotation in _KINDS:
        click.echo(f"{kind} policies, chosen by the annotation {annotation}:")
        for policy in known[kind]:
            click.echo(f"  {policy['name']:<{width}}  {policy['description']}")


@click.command(
    cls=Command,
    examples="""
    gnomon decisions classify
    gnomon decisions classify --limit 1 --json
    """,
)
@click.argument("name")
@gateway_options()
@namespace_option
@click.option("--limit", type=click.IntRange(min=1), default=10, help="How many, the newest first; default 10.")
@json_option
def decisions(*, target: Target, name: str, namespace: str, limit: int, as_json: bool) -> None:
    """Show how a function was scaled, and why."""
    address = f"{name}.{namespace}" if namespace else name
    found = target.gateway().json("GET", f"/gnomon/functions/{quote(address)}/decisions", query={"limit": str(limit)})
    if as_json:
        print_json(found)
        return
    for record in found:
        click.echo(_sentence(record))


def _sentence(record: Mapping[str, Any]) -> str:
    """`2026-01-01T00:00:00Z kpa CreateBody ×2: 3.2 in the system, target 1.`, and what became of it where that failed."""
    names = [_action(action) for action in record["actions"]]
    counted = [f"{name} ×{names.count(name)}" if names.count(name) > 1 else name for name in dict.fromkeys(names)]
    said = f"{record['at']} {record['policy']} {', '.join(counted) or 'nothing'}: {record['reason']}"
    if error := record.get("error"):
        said += f"; failed: {error}"
    return said + (f" ({repeats + 1} times)" if (repeats := record.get("repeats")) else "")


def _action(action: Mapping[str, Any]) -> str:
    """What was done; of a Shadow also for whom and with how many blocks."""
    pair = action.get("pair")
    if pair is None:
        return str(action["action"])
    whom = action.get("body") or action.get("id")
    return f"{action['action']}({whom}: {len(pair['blocks'])} blocks, {pair['shadow_cores']} cores)"
