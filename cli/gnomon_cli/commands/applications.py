"""`gnomon app`: applications, whose queries name a goal instead of a model.

A model of the repository is registered for an application with its accuracy; the gateway measures each way to run it, and each
query gets the cheapest variant that satisfies it. `describe` shows the variants with their numbers.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import click

from gnomon_cli.command import Command
from gnomon_cli.commands.functions import in_namespace
from gnomon_cli.options import Target, gateway_options, json_option, namespace_option
from gnomon_cli.output import compact_json, print_json, print_table

PATH = "/system/applications"
_NONE = "-"


@click.group()
def app() -> None:
    """List, describe, extend and remove applications."""


@app.command(
    "list",
    cls=Command,
    examples="""
    gnomon app list
    gnomon app list --json
    """,
)
@gateway_options()
@namespace_option
@json_option
def list_applications(*, target: Target, namespace: str, as_json: bool) -> None:
    """List the applications."""
    applications = target.gateway().json("GET", PATH, query=in_namespace(namespace)) or []
    if as_json:
        print_json(applications)
        return
    rows = [
        (
            application["name"],
            application["endpoint"] or _NONE,
            ", ".join(application["models"]) or _NONE,
            f"{application['active_variants']}/{application['variants']}",
        )
        for application in applications
    ]
    print_table(("APPLICATION", "ENDPOINT", "MODELS", "ACTIVE VARIANTS"), rows)


@app.command(
    cls=Command,
    examples="""
    gnomon app describe faces
    gnomon app describe faces --json
    """,
)
@click.argument("name")
@gateway_options()
@namespace_option
@json_option
def describe(*, target: Target, name: str, namespace: str, as_json: bool) -> None:
    """Show an application's models and variants."""
    application = target.gateway().json("GET", _path(name), query=in_namespace(namespace))
    if as_json:
        print_json(application)
        return
    click.echo(f"{application['name']}  {_endpoint(application['endpoint'])}")
    print_table(("MODEL", "ACCURACY"), [(model["model"], _number(model["accuracy"])) for model in application["models"]])
    for line in application.get("progress", {}).values():
        click.echo(line)
    if application["variants"]:
        click.echo("")
        headings = ("VARIANT", "STATE", "INSTANCES", "ACCURACY", "MS", "LOAD MS", "COST", "ANSWERED")
        print_table(headings, [_row(variant) for variant in application["variants"]])
    if advice := _advice(application.get("workers") or {}):
        click.echo(f"\n{advice}")
    failed = {variant["id"]: variant["problem"] for variant in application["variants"] if variant["problem"]}
    for subject, problem in {**application["problems"], **failed}.items():
        click.echo(f"{subject}: {problem}", err=True)
    store = application.get("store") or {"available": True}
    if not store["available"]:
        waiting = f"; {store['unsent']} changes wait for it" if store["unsent"] else ""
        reason = f"The metadata store does not answer since {store['since']}: {store['problem']}"
        click.echo(f"{reason}. Queries are answered by the last known state{waiting}.", err=True)


@app.command(
    cls=Command,
    examples="""
    gnomon app add faces resnet50 --accuracy 0.76
    gnomon app add faces mobilenet@2
    """,
)
@click.argument("name")
@click.argument("model")
@gateway_options()
@namespace_option
@click.option(
    "--accuracy",
    type=click.FloatRange(0.0, 1.0),
    default=None,
    help="Share of the validation set that the model answers right; without one, queries with an accuracy do not get the model.",
)
@json_option
def add(*, target: Target, name: str, model: str, namespace: str, accuracy: float | None, as_json: bool) -> None:
    """Register a model of the repository for an application, or change its accuracy."""
    document = compact_json({} if accuracy is None else {"accuracy": accuracy})
    found = target.gateway().json("PUT", _path(name, model), query=in_namespace(namespace), document=document)
    if as_json:
        print_json(found)
        return
    click.echo(f"Registered: {found['model']} for {name}. Its variants are measured; watch them with: gnomon app describe {name}")


@app.command(
    cls=Command,
    examples="""
    gnomon app remove faces mobilenet
    gnomon app remove faces
    """,
)
@click.argument("name")
@click.argument("model", required=False, default="")
@gateway_options()
@namespace_option
def remove(*, target: Target, name: str, model: str, namespace: str) -> None:
    """Remove a model from an application, or the application with its endpoint."""
    target.gateway().json("DELETE", _path(name, model), query=in_namespace(namespace))
    click.echo(f"Removed: {model} from {name}." if model else f"Removed: {name}.")


def _path(name: str, model: str = "") -> str:
    path = f"{PATH}/{quote(name, safe='')}"
    return f"{path}/models/{quote(model, safe='@')}" if model else path


def _endpoint(name: str | None) -> str:
    return f"answers at /v2/models/{name}/infer" if name is not None else "has no endpoint; deploy one, or register a model"


def _advice(workers: dict[str, Any]) -> str:
    """The advice to add or to give up a machine, in words; "" if the present number suits."""
    if workers.get("add"):
        return f"One more machine would help: {workers['reason']}."
    if workers.get("remove"):
        return f"{workers['remove'][0]} could be given up: {workers['reason']}."
    return ""


def _row(variant: dict[str, Any]) -> tuple[str, ...]:
    """Latencies of the smallest and the largest batch: `9.1 (1) … 40.2 (8)`."""
    latency = {int(size): float(milliseconds) for size, milliseconds in variant.get("latency_ms", {}).items()}
    ends = sorted({min(latency), max(latency)}) if latency else []
    return (
        variant["id"],
        variant["state"],
        f"{variant['available_replicas']}/{variant['replicas']}",
        _number(variant.get("accuracy")),
        " … ".join(f"{latency[size]:.3g} ({size})" for size in ends) or _NONE,
        _number(variant.get("load_ms")),
        _number(variant.get("cost_per_s")),
        str(variant["answered"]),
    )


def _number(value: float | None) -> str:
    return _NONE if value is None else f"{value:.4g}"
