"""`gnomon deploy`: a stack file's functions, or one image, sent as faas-cli sends them.

Each is first updated by PUT and, where the gateway does not know it yet, created by POST. Then the command waits until an
instance of what was deployed is ready, or none can start. A function that fails does not keep the others from being deployed; the
exit code is 1 then.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import click
import urllib3

from gnomon_cli.client import Gateway, error_code
from gnomon_cli.command import Command, option_group
from gnomon_cli.deployment import Deployment, Overrides, from_flags, from_stack, pairs
from gnomon_cli.options import Target, gateway_options, json_option, namespace_option
from gnomon_cli.output import CommandFailed, compact_json, note, print_json
from gnomon_cli.stack import Resources, Stack

NOT_FOUND = 404
DEPLOYED = frozenset({200, 201, 202})
READY_LIMIT_S = 300.0
"""Seconds to wait for a first instance: an image of gigabytes may have to be pulled."""
CALL_TIMEOUT_S = 300.0
"""Timeout of the deployment request in seconds: an upload or a remote gateway may be slow."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 0.5
"""Between two looks."""


deploy_options = option_group(
    click.option("-e", "--env", multiple=True, metavar="KEY=VALUE", help="Environment variable."),
    click.option("-l", "--label", multiple=True, metavar="KEY=VALUE", help="Label."),
    click.option("--annotation", multiple=True, metavar="KEY=VALUE", help="Annotation, such as gnomon/autoscaler=kpa."),
    click.option("--secret", multiple=True, metavar="NAME", help="Secret that the function may read."),
    click.option("--constraint", multiple=True, metavar="TEXT", help="Constraint on the nodes that may run it."),
    click.option("--readonly", is_flag=True, help="Root file system read-only."),
    click.option("--replace", is_flag=True, help="Remove a function before it is deployed."),
    click.option("--update/--no-update", default=None, help="Update a function in place; the default."),
    click.option("--wait/--no-wait", default=True, help="Wait until the function serves or cannot start; the default."),
    click.option("--read-template/--no-read-template", default=True, help="Take a missing fprocess from the template."),
)
"""The options of `deploy` and `up` that add to a stack file."""


@click.command(
    cls=Command,
    examples="""
    gnomon deploy -f stack.yml
    gnomon deploy -f stack.yml --filter classify --annotation gnomon/autoscaler=k-lv
    gnomon deploy --image functions/alpine:latest --name hash --fprocess sha512sum
    """,
)
@gateway_options(functions=True, timeout_s=CALL_TIMEOUT_S)
@namespace_option
@click.option("--image", default="", help="Image to deploy without a stack file; with --name.")
@click.option("--name", default="", help="Name of the function that --image becomes.")
@click.option("--fprocess", default="", help="Process that the image's watchdog runs.")
@click.option("--cpu-limit", default="", metavar="CORES", help="Most cores, with --image, such as 500m.")
@click.option("--memory-limit", default="", metavar="BYTES", help="Most memory, with --image, such as 128Mi.")
@click.option("--cpu-request", default="", metavar="CORES", help="Requested cores, with --image.")
@click.option("--memory-request", default="", metavar="BYTES", help="Requested memory, with --image.")
@deploy_options
@json_option
def deploy(  # one argument an option
    *,
    target: Target,
    image: str,
    name: str,
    fprocess: str,
    cpu_limit: str,
    memory_limit: str,
    cpu_request: str,
    memory_request: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Deploy the functions of a stack file, or one image."""
    if image or name:
        if not (image and name):
            raise click.UsageError("--image and --name go together.")
        if target.yaml:
            raise click.UsageError("Give -f or --image, not both.")
        deployment = from_flags(
            name=name,
            image=image,
            fprocess=fprocess,
            overrides=overrides(options),
            limits=Resources(memory_limit, cpu_limit),
            requests=Resources(memory_request, cpu_request),
        )
        send_all(target.gateway(), [deployment], options, as_json=as_json)
        return
    deploy_stack(target, required_stack(target), options, as_json=as_json)


def required_stack(target: Target) -> Stack:
    """The stack file's chosen functions, of which there must be some."""
    stack = target.stack()
    if stack is None:
        raise click.UsageError("There is no stack.yml here. Name one with -f, or deploy an image with --image and --name.")
    if not stack.functions:
        for warning in stack.warnings:
            note(f"Warning: {warning}")
        raise CommandFailed(f"{stack.file} has no functions.", "Add one under `functions:`.")
    for warning in stack.warnings:
        note(f"Warning: {warning}")
    return stack


def deploy_stack(target: Target, stack: Stack, options: dict[str, Any], *, as_json: bool) -> None:
    """Deploy the functions of a stack."""
    extra = overrides(options)
    deployments = [from_stack(stack, function, extra, read_template=options["read_template"]) for function in stack.functions]
    send_all(target.gateway(stack), deployments, options, as_json=as_json)


def overrides(options: dict[str, Any]) -> Overrides:
    """The values that the options add to a function."""
    return Overrides(
        namespace=options["namespace"],
        environment=pairs(options["env"], "env"),
        labels=pairs(options["label"], "label"),
        annotations=pairs(options["annotation"], "annotation"),
        secrets=options["secret"],
        constraints=options["constraint"],
        readonly=options["readonly"],
    )


def send_all(gateway: Gateway, deployments: Iterable[Deployment], options: dict[str, Any], *, as_json: bool) -> None:
    """Deploy one after the other; an error names every function that failed."""
    replace, update = options["replace"], options["update"]
    if replace and update:
        raise click.UsageError("--replace removes a function first, --update changes it in place: use one of them.")
    update = not replace if update is None else update
    results, failures = [], []
    for deployment in deployments:
        if not as_json:
            click.echo(f"Deploying: {deployment.name}.")
        try:
            answer = send(gateway, deployment, replace=replace, update=update)
            problem = await_instance(gateway, answer) if options["wait"] else ""
        except CommandFailed as error:
            failures.append(f"{deployment.name}: {error.message}")
            continue
        suffix = f".{deployment.namespace}" if deployment.namespace else ""
        url = f"{gateway.url}/function/{deployment.name}{suffix}"
        results.append({"name": deployment.name, "status": answer.status, "url": url})
        if not as_json:
            click.echo(f"Deployed. URL: {url}{problem}")
    if as_json:
        print_json(results)
    for failure in failures[:-1]:
        note(f"Error: {failure}")
    if failures:
        raise CommandFailed(failures[-1])


def send(gateway: Gateway, deployment: Deployment, *, replace: bool, update: bool) -> urllib3.BaseHTTPResponse:
    """Deploy one function; the answer that deployed it."""
    headers, until_s = {"Content-Type": "application/json"}, time.monotonic() + READY_LIMIT_S
    if replace:
        answer = gateway.call("DELETE", "/system/functions", body=removal(deployment.name, deployment.namespace), headers=headers)
        if answer.status != NOT_FOUND:
            gateway.check(answer)
    answer = gateway.call("PUT" if update else "POST", "/system/functions", body=deployment.body, headers=headers)
    if update and answer.status == NOT_FOUND:
        answer = gateway.call("POST", "/system/functions", body=deployment.body, headers=headers)
    # An update is refused after some seconds while its model is still being captured or downloaded.
    while error_code(answer) == "model_not_here" and time.monotonic() < until_s:
        answer = gateway.call("PUT", "/system/functions", body=deployment.body, headers=headers)
    if answer.status not in DEPLOYED:
        raise CommandFailed(gateway.explain(answer))
    return answer


def await_instance(gateway: Gateway, accepted: urllib3.BaseHTTPResponse) -> str:
    """Wait until an instance of what was deployed is ready. Returns a line more where others are missing; else nothing.

    Nothing is waited for where the gateway does not say how instances start, which is ours alone to tell.

    Raises:
        CommandFailed: none starts; with the reason.

    """
    path, until_s, pause_s = accepted.headers.get("Location", ""), time.monotonic() + READY_LIMIT_S, FIRST_PAUSE_S
    detail: Mapping[str, Any] = {}
    while path and time.monotonic() < until_s:
        answer = gateway.call("GET", path)
        if answer.status == NOT_FOUND:
            return ""  # removed meanwhile, or a gateway in front of ours passes on some routes only
        gateway.check(answer)
        detail = answer.json()
        problem = detail.get("problem") or {}
        ready = [body for body in detail["bodies"] if body["state"] == "ready" and body["version"] >= detail["version"]]
        if ready:
            return f"\n{len(ready)} of {detail['replicas']} instances are ready. {_why(problem)}" if problem else ""
        if problem.get("final"):
            raise CommandFailed(f"{_why(problem)} ({problem['code']})")
        # Without a problem: a function whose model is still being captured has no instances yet, and is waited for.
        if not detail["replicas"] and not problem:
            return "\nIts first request starts an instance."
        time.sleep(pause_s)
        pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)
    if not path:
        return ""
    why = _why(detail["problem"]) if detail.get("problem") else "`gnomon logs` and `gnomon decisions` may say why."
    raise CommandFailed(f"it is deployed, and has no instance that is ready after {READY_LIMIT_S:g} s. {why}")


def _why(problem: Mapping[str, Any]) -> str:
    return " ".join(f"{problem['message']} {problem.get('hint', '')}".split())


def removal(name: str, namespace: str) -> bytes:
    """The document that removes a function."""
    return compact_json({"functionName": name} | ({"namespace": namespace} if namespace else {}))
