"""What `gnomon describe` shows of a function's scaling policy, Bodies and Shadows. Only a gateway of Gnomon knows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import click

from gnomon_cli.client import Gateway
from gnomon_cli.output import print_table

_NOT_FOUND = 404


def instances_of(gateway: Gateway, address: str) -> Mapping[str, Any]:
    """The function's instances; empty where the gateway is another one's, which knows no such thing.

    Raises:
        CommandFailed: The gateway answered something else.

    """
    path = f"/gnomon/functions/{quote(address)}"
    answer = gateway.call("GET", path)
    if answer.status == _NOT_FOUND:
        return {}
    gateway.check(answer)
    try:
        found = answer.json()
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def print_instances(found: Mapping[str, Any]) -> None:
    """Two tables, and a line each on the scaling policy, what the function does without, and what pairs did."""
    bodies, shadows, pairs = found.get("bodies") or [], found.get("shadows") or [], found.get("pairs") or {}
    if found.get("problem"):
        click.echo(f"Problem: {found['problem']['message']}")
    if in_force := found.get("scaling_in_force"):
        asked = found.get("scaling")
        instead = f" (in place of {asked})" if in_force["policy"] != asked else ""
        failed = f"; {in_force['error']}" if in_force["error"] and in_force["error"] not in in_force["reason"] else ""
        click.echo(f"Scaling policy: {in_force['policy']}{instead}: {in_force['reason']}{failed}")
    if found.get("notice"):
        click.echo(f"Notice: {found['notice']}")
    if bodies:
        click.echo("Bodies:")
        columns = ("  ID", "STATE", "CORES", "MEMORY", "LARGEST BATCH", "IN FLIGHT", "SHADOW")
        print_table(columns, [_body_row(body) for body in bodies])
    if shadows:
        click.echo("Shadows:")
        print_table(
            ("  ID", "STATE", "CORES", "MEMORY", "BODY", "BLOCKS", "OF THE WEIGHTS", "SPLIT"),
            [_shadow_row(shadow) for shadow in shadows],
        )
    batches = pairs.get("batches")
    if batches:
        click.echo(
            f"Pairs: {batches} batches, {pairs['offloaded_samples']} samples computed by Shadows, {pairs['misses']} misses; "
            f"{_ms(pairs['measured_s'], batches)} a batch, predicted {_ms(pairs['predicted_s'], batches)}"
        )


def _body_row(body: Mapping[str, Any]) -> tuple[object, ...]:
    shadows = body.get("shadows") or [body.get("shadow") or "-"]
    return (*_columns(body), body.get("max_batch") or "-", body["in_flight"], ", ".join(map(str, shadows)))


def _shadow_row(shadow: Mapping[str, Any]) -> tuple[object, ...]:
    share = shadow.get("parameter_share")
    held = f"{100 * share:.0f} %" if share is not None else "?"
    return (*_columns(shadow), shadow.get("body") or "-", _ranges(shadow["blocks"]), held, _texts(shadow["split"]))


def _columns(instance: Mapping[str, Any]) -> tuple[object, ...]:
    memory = f"{instance['memory_bytes'] / 2**20:.0f} MiB"
    return f"  {instance['id']}", instance["state"], instance["cores"], memory


def _ranges(numbers: Sequence[int]) -> str:
    """[0, 1, 2, 5] is 0-2,5."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs) or "-"


def _texts(split: Sequence[int]) -> str:
    return "/".join(map(str, split)) or "-"


def _ms(seconds: float, batches: int) -> str:
    return f"{1000 * seconds / batches:.1f} ms"
