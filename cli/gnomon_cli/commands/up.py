"""`gnomon up`: build each function of a stack file where the gateway is, without Docker, and deploy it.

The archive travels to the builder's `POST /build` with an HMAC-SHA256 over all of it, OpenFaaS's remote-builder protocol; what
the build prints comes back line by line. The builder is the gateway itself unless another is named.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from gnomon_cli.build_context import BuildFlags, build_archive
from gnomon_cli.client import Gateway
from gnomon_cli.command import Command
from gnomon_cli.commands.deploy import CALL_TIMEOUT_S, deploy_options, deploy_stack, required_stack
from gnomon_cli.credentials import Credentials
from gnomon_cli.deployment import pairs
from gnomon_cli.errors import CommandFailed
from gnomon_cli.options import Target, gateway_options, json_option, namespace_option
from gnomon_cli.output import note
from gnomon_cli.stack import Stack, StackFunction
from gnomon_server.options import payload_secret_file, state_folder


@click.command(
    cls=Command,
    examples="""
    gnomon up -f stack.yml
    gnomon up -f stack.yml --filter greet --build-arg PYTHON=3.12
    gnomon up -f stack.yml --remote-builder https://builder.example.com --payload-secret secret.txt
    """,
)
@gateway_options(functions=True, timeout_s=CALL_TIMEOUT_S)
@namespace_option
@click.option(
    "--remote-builder", default="", envvar="OPENFAAS_REMOTE_BUILDER", metavar="URL", help="Builder; default: the gateway."
)
@click.option(
    "--payload-secret",
    default="",
    envvar="OPENFAAS_PAYLOAD_SECRET",
    metavar="FILE",
    help="File with the builder's secret; default: the one that `gnomon serve` on this machine made.",
)
@click.option("-b", "--build-arg", multiple=True, metavar="KEY=VALUE", help="Build argument.")
@click.option("-o", "--build-option", multiple=True, metavar="NAME", help="Build option of the template.")
@click.option("--copy-extra", multiple=True, metavar="PATH", help="File or folder to put beside the handler.")
@click.option("--quiet", is_flag=True, help="Do not show what the build prints.")
@click.option("--skip-deploy", is_flag=True, help="Build only.")
@deploy_options
@json_option
def up(  # one argument an option
    *,
    target: Target,
    remote_builder: str,
    payload_secret: str,
    build_arg: tuple[str, ...],
    build_option: tuple[str, ...],
    copy_extra: tuple[str, ...],
    quiet: bool,
    skip_deploy: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Build the functions of a stack file and deploy them."""
    stack = required_stack(target)
    flags = BuildFlags(pairs(build_arg, "build-arg"), build_option, copy_extra)
    archives = {
        function.name: build_archive(stack, function, flags)
        for function in stack.functions
        if not function.skip_build and function.lang
    }
    if archives:
        builder = _builder(target, stack, remote_builder)
        secret = _secret(payload_secret)
        for function in stack.functions:
            if function.name in archives:
                _build(builder, function, archives[function.name], secret, quiet=quiet)
    if not skip_deploy:
        deploy_stack(target, stack, options, as_json=as_json)


def _builder(target: Target, stack: Stack, url: str) -> Gateway:
    """The builder is asked without our login: the signature speaks for us."""
    parts = urlsplit(url or target.gateway(stack).url)
    return Gateway(f"{parts.scheme}://{parts.netloc}", Credentials(), verify_tls=target.verify_tls, timeout_s=target.timeout_s)


def _secret(file: str) -> bytes:
    path = Path(file) if file else payload_secret_file(state_folder("", os.environ))
    try:
        return path.read_bytes().strip()
    except OSError as error:
        raise CommandFailed(
            f"{path}: {error.strerror or error}.",
            "Name the file with the builder's secret by --payload-secret; `gnomon serve` makes one in its state folder.",
        ) from None


def _build(builder: Gateway, function: StackFunction, archive: bytes, secret: bytes, *, quiet: bool) -> None:
    note(f"Building: {function.name} as {function.image} ({len(archive) / 1024:.0f} KiB).")
    begin_s = time.monotonic()
    headers = {
        "Content-Type": "application/octet-stream",
        "Accept": "application/x-ndjson",
        "X-Build-Signature": "sha256=" + hmac.new(secret, archive, hashlib.sha256).hexdigest(),
    }
    answer = builder.call("POST", "/build", body=archive, headers=headers, authenticated=False, stream=True, patient=True)
    if not 200 <= answer.status < 300:  # noqa: PLR2004 - HTTP's own classes
        answer.read(cache_content=True)
        raise CommandFailed(f"{function.name}: {builder.explain(answer)}")
    last: dict[str, Any] = {}
    for last in builder.documents(answer):
        for text in last.get("log") or []:
            if not quiet:
                note(f"  {text}")
    if last.get("status") != "success":
        why = str(last.get("error") or "the builder stopped without a result").rstrip(".")
        raise CommandFailed(f"{function.name} was not built: {why}.")
    note(f"Built: {last.get('image') or function.image} in {time.monotonic() - begin_s:.1f} s.")
