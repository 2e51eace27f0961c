"""`gnomon up`: build each function of a stack file where the gateway is, without Docker, and deploy it; or serve a model.

The archive is a tar of `context/…` (the template's files, the handler's files over its handler folder, and what
`configuration.copy` names) and, last, `com.openfaas.docker.config` with the image's name and the build arguments. Names are
sorted, and times, owners and modes are constant: the same files give the same archive, so the builder can tell that nothing
changed.

The archive is sent to the builder's `POST /build` with an HMAC-SHA256 over all of it, OpenFaaS's remote-builder protocol; the
output of the build comes back line by line. The builder is the gateway itself unless another is named.

With MODEL no stack file is read: the model is captured from its source, or taken from this machine's repository where the server
has none of this name, uploaded, and deployed as a function with the annotation gnomon/model.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import os
import re
import tarfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import click

from gnomon_cli.client import Gateway
from gnomon_cli.command import Command
from gnomon_cli.commands.deploy import CALL_TIMEOUT_S, deploy_options, deploy_stack, overrides, required_stack, send_all
from gnomon_cli.credentials import Credentials
from gnomon_cli.deployment import MODEL, from_flags, model_image, pairs, read_template
from gnomon_cli.model_repository import RemoteModels, check_source, model_repository, source_options
from gnomon_cli.options import Target, gateway_options, json_option, namespace_option
from gnomon_cli.output import CommandFailed, WrongCommand, compact_json, note
from gnomon_cli.stack import Resources, Stack, StackFunction, Value
from gnomon_server.options import payload_secret_file, state_folder


@click.command(
    cls=Command,
    examples="""
    gnomon up -f stack.yml
    gnomon up -f stack.yml --filter greet --build-arg PYTHON=3.12
    gnomon up -f stack.yml --remote-builder https://builder.example.com --payload-secret secret.txt
    gnomon up efficientnet-lite0
    gnomon up flowers --from training/network.py:make --annotation gnomon/slo-ms=200
    gnomon up reviews --from distilbert-reviews/ --length 64 -g http://server:8080
    """,
)
@click.argument("model", default="")
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
@click.option("--name", default="", help="Name of the function that serves MODEL; default: the model's.")
@source_options
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
    model: str,
    name: str,
    source: str,
    shapes: tuple[tuple[int, ...], ...],
    length: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Build the functions of a stack file and deploy them, or serve MODEL as a function.

    MODEL is one of the server's repository, of this machine's, or of the catalog (`gnomon models list --catalog`); with --from it
    is added under this name first. `gnomon models add` has more options.
    """
    if model:
        if target.yaml or skip_deploy:
            raise click.UsageError("MODEL is deployed without a stack file: leave out -f and --skip-deploy.")
        gateway = target.gateway()
        _add_model(gateway, model, source, shapes, length or 0)
        changes = overrides(options)
        deployment = from_flags(
            name=name or _function_name(model),
            image=model_image(),
            fprocess="",
            overrides=replace(changes, annotations={MODEL: model, **changes.annotations}),
            limits=Resources(),
            requests=Resources(),
        )
        send_all(gateway, [deployment], options, as_json=as_json)
        return
    if source or shapes or length or name:
        raise click.UsageError(
            "--from, --shape, --length and --name are of a model: name it, as in `gnomon up MODEL --from FILE`."
        )
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


def _add_model(gateway: Gateway, model: str, source: str, shapes: tuple[tuple[int, ...], ...], length: int) -> None:
    """Upload a model, captured from its source or as this machine's repository has it, unless the server has it.

    A model of the catalog that is in neither repository is left to the server, which captures it at the deployment.
    """
    check_source(source, shapes, length)
    if not source and ("/" in model or ".py:" in model or Path(model).is_file()):
        raise WrongCommand(f"{model} is where a model comes from.", f"Name the model: gnomon up NAME --from {model}")

    from gnomon_profiler.add import add_from, existing  # noqa: PLC0415 - the profiler's libraries take a second to import
    from gnomon_profiler.engines import add_engines  # noqa: PLC0415 - likewise

    server, repository = RemoteModels(gateway), model_repository("", "")
    there = server.find(model)  # a server that refuses says so before minutes of capturing
    if source:
        name, _, version = model.partition("@")
        entry = add_from(repository, name, source, version=version or "1", shapes=shapes, length=length, progress=note)
        server.upload(add_engines(repository, entry, progress=note), note)
    elif there is None and (local := existing(repository, model)) is not None:
        server.upload(local, note)


def _function_name(model: str) -> str:
    """A function's name for a model. Example: "torchvision:resnet50@1" gives "resnet50"."""
    return re.sub(r"[^a-z0-9]+", "-", model.partition("@")[0].rpartition(":")[2].lower()).strip("-")


def _builder(target: Target, stack: Stack, url: str) -> Gateway:
    """The client of the builder, without a login: the signature authenticates the request."""
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


CONFIG = "com.openfaas.docker.config"
PACKAGES = "ADDITIONAL_PACKAGE"
HANDLER_FOLDER = "function"
NOT_HANDLER = frozenset({"build", "template"})
"""Folders beside a handler that faas-cli makes itself."""
LEFT_OUT = frozenset({"__pycache__", ".git"})
"""Folders that say nothing about the function and change from machine to machine."""


@dataclass(frozen=True, slots=True)
class BuildFlags:
    """The options that apply to every build."""

    arguments: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    copy: tuple[str, ...] = ()


def build_archive(stack: Stack, function: StackFunction, flags: BuildFlags) -> bytes:
    """The archive that builds a function.

    Raises:
        CommandFailed: Its handler, its template, a build option or something to copy is not there.

    """
    _check(stack, function)
    files: dict[str, Path] = {}
    folder = PurePosixPath("context")
    packages: tuple[str, ...] = ()
    if function.has_template:
        source, template = read_template(stack, function)
        files |= _files(source, folder)
        folder /= template.get("handler_folder").text() or HANDLER_FOLDER
        packages = _packages(stack, function, template, flags)
    files |= _files(stack.resolve(function.handler), folder, but=NOT_HANDLER)
    for name in dict.fromkeys((*stack.copy, *flags.copy)):
        files |= _copied(stack, name, folder)
    arguments = {**function.build_args, **flags.arguments}
    named = arguments.get(PACKAGES, "").split()
    arguments[PACKAGES] = " ".join(sorted({*packages, *named}))
    config = compact_json({"image": function.image, "buildArgs": arguments})
    return _tar(files, config)


def _check(stack: Stack, function: StackFunction) -> None:
    where = f"{stack.file}:{function.line}: functions.{function.name}"
    for what, value in (("image", function.image), ("lang", function.lang), ("handler", function.handler)):
        if not value:
            raise CommandFailed(
                f"{where} has no {what}.", "Building needs `lang`, `handler` and `image`; `skip_build: true` leaves it out."
            )
    if not stack.resolve(function.handler).is_dir():
        raise CommandFailed(f"{where}.handler: {function.handler} is not a folder.")


def _packages(stack: Stack, function: StackFunction, template: Value, flags: BuildFlags) -> tuple[str, ...]:
    """The system packages of the requested build options."""
    known = {item.get("name").text(): item.get("packages").list() for item in template.get("build_options").items()}
    packages: list[str] = []
    for option in dict.fromkeys((*flags.options, *function.build_options)):
        if option not in known:
            where = f"{stack.file}:{function.line}: functions.{function.name}.build_options"
            raise CommandFailed(
                f"{where}: the template {function.lang!r} has no option {option!r}.", f"It has: {', '.join(known) or 'none'}."
            )
        packages += known[option]
    return tuple(packages)


def _copied(stack: Stack, name: str, folder: PurePosixPath) -> dict[str, Path]:
    """A file or folder of the project, under its own name beside the handler."""
    root = Path.cwd().resolve()
    path = stack.resolve(name).resolve()
    inside = path.is_relative_to(root) or path.is_relative_to(stack.folder.resolve())
    if path in {root, stack.folder.resolve()} or not inside:
        raise CommandFailed(f"{stack.file}: configuration.copy: {name} is not inside the project.")
    if not path.exists():
        raise CommandFailed(f"{stack.file}: configuration.copy: {name} is not there.")
    target = folder / PurePosixPath(name)
    return _files(path, target) if path.is_dir() else {str(target): path}


def _files(source: Path, target: PurePosixPath, *, but: frozenset[str] = frozenset()) -> dict[str, Path]:
    """Every file under a folder with its name in the archive. Links are followed; one that leads in a circle is an error."""
    try:
        return dict(_walk(source, target, but | LEFT_OUT, ()))
    except OSError as error:
        raise CommandFailed(f"{error.filename or source}: {error.strerror or error}.") from None


def _walk(source: Path, target: PurePosixPath, but: Iterable[str], ancestors: tuple[Path, ...]) -> Iterator[tuple[str, Path]]:
    real = source.resolve()
    if real in ancestors:
        raise CommandFailed(f"{source} is a link to a folder that it is in.")
    for entry in sorted(source.iterdir()):
        if entry.name in but:
            continue
        if entry.is_dir():
            yield from _walk(entry, target / entry.name, LEFT_OUT, (*ancestors, real))
        elif entry.is_file():
            yield str(target / entry.name), entry


def _tar(files: Mapping[str, Path], config: bytes) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in sorted(files):
            executable = files[name].stat().st_mode & 0o100
            _add(tar, name, files[name].read_bytes(), 0o755 if executable else 0o644)
        _add(tar, CONFIG, config, 0o644)
    return archive.getvalue()


def _add(tar: tarfile.TarFile, name: str, data: bytes, mode: int) -> None:
    header: Any = tarfile.TarInfo(name)
    header.size, header.mode = len(data), mode
    tar.addfile(header, io.BytesIO(data))
