"""`gnomon list`, `describe`, `scale`, `remove`, `policies` and `decisions`: deployed functions and their scaling.

`describe` shows a function's scaling policy, Bodies and Shadows where the gateway is Gnomon's; other gateways know none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import click

from gnomon_cli.client import Gateway
from gnomon_cli.command import Command
from gnomon_cli.commands.deploy import removal, required_stack
from gnomon_cli.options import Target, gateway_options, json_option, namespace_option
from gnomon_cli.output import CommandFailed, compact_json, note, print_json, print_table

_ORDERS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "name": lambda function: function["name"],
    "invocations": lambda function: -function.get("invocationCount", 0),
    "creation": lambda function: function.get("createdAt", ""),
}


def listed(gateway: Gateway, namespace: str) -> list[dict[str, Any]]:
    """The functions of a namespace."""
    functions: list[dict[str, Any]] | None = gateway.json("GET", "/system/functions", query=in_namespace(namespace))
    return functions or []


def in_namespace(namespace: str) -> dict[str, str]:
    """The query that names a namespace, empty for the default one."""
    return {"namespace": namespace} if namespace else {}


@click.command(
    "list",
    cls=Command,
    examples="""
    gnomon list
    gnomon list -v --sort invocations
    gnomon list --json | jq '.[].name'
    """,
)
@gateway_options()
@namespace_option
@click.option("-q", "--quiet", is_flag=True, help="Print names only.")
@click.option("-v", "--verbose", is_flag=True, help="Also print images and when they were deployed.")
@click.option("--sort", type=click.Choice(list(_ORDERS)), default="name", help="Sort key; default name.")
@json_option
def list_functions(*, target: Target, namespace: str, quiet: bool, verbose: bool, sort: str, as_json: bool) -> None:
    """List the deployed functions."""
    functions = sorted(listed(target.gateway(), namespace), key=_ORDERS[sort])
    if as_json:
        print_json(functions)
    elif quiet:
        for function in functions:
            click.echo(function["name"])
    elif verbose:
        header = ("FUNCTION", "IMAGE", "INVOCATIONS", "REPLICAS", "AVAILABLE", "CREATED")
        print_table(header, [(f["name"], f.get("image", ""), *_counts(f), f.get("createdAt", "")) for f in functions])
    else:
        print_table(("FUNCTION", "INVOCATIONS", "REPLICAS", "AVAILABLE"), [(f["name"], *_counts(f)) for f in functions])


def _counts(function: Mapping[str, Any]) -> tuple[int, int, int]:
    """The counts of a function; a missing key means zero, as in Go's omitempty."""
    return int(function.get("invocationCount", 0)), function.get("replicas", 0), function.get("availableReplicas", 0)


@click.command(
    cls=Command,
    examples="""
    gnomon describe classify
    gnomon describe classify --json
    """,
)
@click.argument("name")
@gateway_options()
@namespace_option
@click.option("-v", "--verbose", is_flag=True, help="Also print fields that are not set.")
@json_option
def describe(*, target: Target, name: str, namespace: str, verbose: bool, as_json: bool) -> None:
    """Show everything about a function."""
    gateway = target.gateway()
    query = {**in_namespace(namespace), "usage": "1"}
    function: dict[str, Any] = gateway.json("GET", f"/system/function/{quote(name)}", query=query)
    counts = {other["name"]: other.get("invocationCount", 0) for other in listed(gateway, namespace)}
    suffix = f".{namespace}" if namespace else ""
    function |= {
        "status": "Ready" if function.get("availableReplicas", 0) else "Not Ready",
        "invocationCount": int(counts.get(function["name"], 0)),
        "url": f"{gateway.url}/function/{name}{suffix}",
        "asyncUrl": f"{gateway.url}/async-function/{name}{suffix}",
        "instances": instances_of(gateway, f"{name}{suffix}"),
    }
    if as_json:
        print_json(function)
        return
    for title, value in _described(function):
        if value not in (None, "", {}, []):
            _print_field(title, value)
        elif verbose:
            _print_field(title, "<none>")
    print_instances(function["instances"])


def _described(function: Mapping[str, Any]) -> list[tuple[str, Any]]:
    usage = function.get("usage") or {}
    return [
        ("Name", function["name"]),
        ("Status", function["status"]),
        ("Replicas", function.get("replicas", 0)),
        ("Available", function.get("availableReplicas", 0)),
        ("Invocations", function["invocationCount"]),
        ("Image", function.get("image")),
        ("Process", function.get("envProcess") or "<default>"),
        ("URL", function["url"]),
        ("Async URL", function["asyncUrl"]),
        ("Created", function.get("createdAt")),
        ("Labels", function.get("labels")),
        ("Annotations", function.get("annotations")),
        ("Constraints", function.get("constraints")),
        ("Environment", function.get("envVars")),
        ("Secrets", function.get("secrets")),
        ("Requests", function.get("requests")),
        ("Limits", function.get("limits")),
        (
            "Usage",
            {"CPU": f"{usage.get('cpu', 0):.0f}m", "RAM": f"{usage.get('totalMemoryBytes', 0) / 2**20:.1f} MiB"}
            if usage
            else None,
        ),
    ]


def _print_field(title: str, value: Any) -> None:
    if isinstance(value, dict):
        click.echo(f"{title}:")
        for key in sorted(value):
            click.echo(f"  {key}: {value[key]}")
    elif isinstance(value, list):
        click.echo(f"{title}:")
        for item in value:
            click.echo(f"  - {item}")
    else:
        click.echo(f"{title + ':':<13}{value}")


@click.command(
    cls=Command,
    # So that -1 is a number out of range and not an unknown option.
    context_settings={"ignore_unknown_options": True},
    examples="""
    gnomon scale classify 3
    gnomon scale classify 0        # with com.openfaas.scale.min or scale.zero allowing it
    """,
)
@click.argument("name")
@click.argument("replicas", type=click.IntRange(min=0))
@gateway_options()
@namespace_option
def scale(*, target: Target, name: str, replicas: int, namespace: str) -> None:
    """Set how many instances a function has.

    Its scaling policy goes on from there.
    """
    document = compact_json({"serviceName": name, "replicas": replicas} | in_namespace(namespace))
    target.gateway().json("POST", f"/system/scale-function/{quote(name)}", query=in_namespace(namespace), document=document)
    click.echo(f"Scaling {name} to {replicas}.")


@click.command(
    cls=Command,
    examples="""
    gnomon remove classify
    gnomon remove -f stack.yml --filter "img-*"
    """,
)
@click.argument("names", nargs=-1)
@gateway_options(functions=True)
@namespace_option
def remove(*, target: Target, names: tuple[str, ...], namespace: str) -> None:
    """Remove functions, by name or those of a stack file."""
    stack = None
    chosen = [(name, namespace) for name in names]
    if not names:
        if not target.yaml:
            raise click.UsageError("Name the functions to remove, or a stack file with -f.")
        stack = required_stack(target)
        chosen = [(function.name, namespace or function.namespace) for function in stack.functions]
    gateway = target.gateway(stack)
    failures = []
    for name, place in chosen:
        headers = {"Content-Type": "application/json"}
        answer = gateway.call("DELETE", "/system/functions", body=removal(name, place), headers=headers)
        try:
            gateway.check(answer)
        except CommandFailed as error:
            failures.append(f"{name}: {error.message}")
        else:
            click.echo(f"Removed: {name}.")
    for failure in failures[:-1]:
        note(f"Error: {failure}")
    if failures:
        raise CommandFailed(failures[-1])


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


def print_instances(detail: Mapping[str, Any]) -> None:
    """Two tables, and a line each on the scaling policy, what the function does without, and what pairs did."""
    bodies, shadows, pairs = detail.get("bodies") or [], detail.get("shadows") or [], detail.get("pairs") or {}
    if detail.get("problem"):
        click.echo(f"Problem: {detail['problem']['message']}")
    if in_force := detail.get("scaling_in_force"):
        scaling = detail.get("scaling")
        instead = f" (in place of {scaling})" if in_force["policy"] != scaling else ""
        failed = f"; {in_force['error']}" if in_force["error"] and in_force["error"] not in in_force["reason"] else ""
        click.echo(f"Scaling policy: {in_force['policy']}{instead}: {in_force['reason']}{failed}")
    if detail.get("engine"):
        click.echo(f"Engine: {detail['engine']}")
    if detail.get("notice"):
        click.echo(f"Notice: {detail['notice']}")
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
@click.option("--limit", type=click.IntRange(min=1), default=10, help="Number of decisions, the newest first; default 10.")
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
    line = f"{record['at']} {record['policy']} {', '.join(counted) or 'nothing'}: {record['reason']}"
    if error := record.get("error"):
        line += f"; failed: {error}"
    return line + (f" ({repeats + 1} times)" if (repeats := record.get("repeats")) else "")


def _action(action: Mapping[str, Any]) -> str:
    """The action; for a Shadow also its Body and the number of its blocks."""
    pair = action.get("pair")
    if pair is None:
        return str(action["action"])
    whom = action.get("body") or action.get("id")
    return f"{action['action']}({whom}: {len(pair['blocks'])} blocks, {pair['shadow_cores']} cores)"
