"""`gnomon list`, `describe`, `scale` and `remove`: what is deployed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

import click

from gnomon_cli.client import Gateway
from gnomon_cli.command import Command
from gnomon_cli.commands.deploy import removal, required_stack
from gnomon_cli.commands.instances import instances_of, print_instances
from gnomon_cli.errors import CommandFailed
from gnomon_cli.go_json import go_json
from gnomon_cli.options import Target, gateway_options, json_option, namespace_option
from gnomon_cli.output import note, print_json, print_table

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
@click.option("--sort", type=click.Choice(list(_ORDERS)), default="name", help="Order; default name.")
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
    """Zero is written by leaving the key out."""
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
@click.option("-v", "--verbose", is_flag=True, help="Also print what is not set.")
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
    document = go_json({"serviceName": name, "replicas": replicas} | in_namespace(namespace))
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
