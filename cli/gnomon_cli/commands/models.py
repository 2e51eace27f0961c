"""`gnomon models`: the model repository, a folder of layer programs and weights that functions name by `gnomon/model`.

A model of the catalog is captured here, once; one of your own comes as the two files that `gnomon_profiler.extractor.capture`
makes. What is in the repository has been checked, and `verify` reads every byte again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from gnomon_cli.command import Command
from gnomon_cli.commands.figures import figures
from gnomon_cli.commands.profiles import profile, profiles
from gnomon_cli.errors import CommandFailed
from gnomon_cli.model_folder import folder_options, model_repository
from gnomon_cli.options import json_option
from gnomon_cli.output import note, print_json, print_table
from gnomon_core.seam_values import ModelEntry
from gnomon_profiler.add import ensure_model
from gnomon_profiler.entries import PROGRAM, WEIGHTS
from gnomon_profiler.names import known_names


@click.group()
def models() -> None:
    """Add, list, verify and profile models."""


models.add_command(profile)
models.add_command(profiles)
models.add_command(figures)


@models.command(
    "list",
    cls=Command,
    examples="""
    gnomon models list
    gnomon models list --catalog
    """,
)
@folder_options
@click.option("--catalog", is_flag=True, help="What `add` knows, instead of what is there.")
@json_option
def list_models(*, folder: str, state: str, catalog: bool, as_json: bool) -> None:
    """List the models in the repository."""
    if catalog:
        print_json(list(known_names())) if as_json else click.echo("\n".join(known_names()))
        return
    entries = list(model_repository(folder, state).list())
    if as_json:
        print_json([_document(entry) for entry in entries])
        return
    rows = [(entry.name, entry.version, entry.signature.kind or "tensors", f"{_size_mb(entry):.1f}") for entry in entries]
    print_table(("MODEL", "VERSION", "KIND", "MB"), rows)


@models.command(
    cls=Command,
    examples="""
    gnomon models add efficientnet-lite0
    gnomon models add torchvision:resnet50 --weights resnet50.pth
    gnomon models add my-model --from captured/ --version 2
    """,
)
@click.argument("name")
@folder_options
@click.option(
    "--weights",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=None,
    help="State dict for a torchvision architecture.",
)
@click.option(
    "--from",
    "source",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=None,
    help=f"Folder with a captured {PROGRAM} and {WEIGHTS}.",
)
@click.option("--version", default="1", help="Version of a model that comes with --from; default 1.")
@json_option
def add(*, name: str, folder: str, state: str, weights: Path | None, source: Path | None, version: str, as_json: bool) -> None:
    """Put a model into the repository: one of the catalog, or a captured one."""
    repository = model_repository(folder, state)
    if source:
        entry = repository.put(name, version, dict(_files(source)))
    else:
        entry = ensure_model(repository, name, weights=weights, progress=note)
    if as_json:
        print_json(_document(entry))
    else:
        click.echo(f"{entry.name}@{entry.version} is in the repository. Serve it with the annotation gnomon/model: {entry.name}")


@models.command(
    cls=Command,
    examples="""
    gnomon models show efficientnet-lite0
    gnomon models show efficientnet-lite0@1 --json
    """,
)
@click.argument("reference")
@folder_options
@json_option
def show(*, reference: str, folder: str, state: str, as_json: bool) -> None:
    """Show what a model takes and gives, and where its files are."""
    entry = model_repository(folder, state).get(reference)
    if as_json:
        print_json(_document(entry))
        return
    click.echo(f"{entry.name}@{entry.version}  {entry.signature.kind or 'tensors in, tensors out'}")
    for direction, tensors in (("in ", entry.signature.inputs), ("out", entry.signature.outputs)):
        for tensor in tensors:
            click.echo(
                f"  {direction}  {tensor.name}: {tensor.datatype} {'×'.join(map(str, tensor.shape)) or 'scalar'} per sample"
            )
    for path in (entry.program, entry.weights):
        click.echo(f"  {path} ({path.stat().st_size / 1e6:.1f} MB)")


@models.command(
    cls=Command,
    examples="""
    gnomon models verify
    gnomon models verify efficientnet-lite0@1
    """,
)
@click.argument("references", nargs=-1)
@folder_options
def verify(*, references: tuple[str, ...], folder: str, state: str) -> None:
    """Read every byte of some models, or of all, and compare with the SHA-256 of their manifests."""
    repository = model_repository(folder, state)
    chosen = references or tuple(f"{entry.name}@{entry.version}" for entry in repository.list())
    broken = [reference for reference in chosen if not repository.verify(reference)]
    for reference in chosen:
        click.echo(f"{reference}: {'broken' if reference in broken else 'whole'}")
    if broken:
        raise CommandFailed(f"Broken: {', '.join(broken)}.", "Add them again with `gnomon models add`.")


def _files(source: Path) -> Iterator[tuple[str, bytes]]:
    for name in (PROGRAM, WEIGHTS):
        path = source / name
        if not path.is_file():
            raise CommandFailed(f"{path} is not there.", "Write both files with gnomon_profiler.extractor.capture.")
        yield name, path.read_bytes()


def _document(entry: ModelEntry) -> dict[str, Any]:
    files = {"program": str(entry.program), "weights": str(entry.weights)}
    return {
        "name": entry.name,
        "version": entry.version,
        "signature": entry.signature.to_json(),
        "files": files,
        "sha256": dict(entry.sha256),
    }


def _size_mb(entry: ModelEntry) -> float:
    return (entry.program.stat().st_size + entry.weights.stat().st_size) / 1e6
