"""`gnomon models`: the model repository, a folder of layer programs and weights that functions name by `gnomon/model`.

A model of the catalog is captured here, once; one of your own comes from the callable that makes it, or as the files that
`gnomon_profiler.extractor.capture` gives. What is in the repository has been checked, and `verify` reads every byte again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from gnomon_cli.command import Command
from gnomon_cli.commands.figures import figures
from gnomon_cli.commands.profiles import profile, profiles
from gnomon_cli.errors import CommandFailed, WrongCommand
from gnomon_cli.model_folder import folder_options, model_repository
from gnomon_cli.options import json_option
from gnomon_cli.output import note, print_json, print_table
from gnomon_core.blocks import Block, Layers
from gnomon_core.interfaces import ModelEntry
from gnomon_profiler.add import add_from, ensure_model
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
    gnomon models add torchvision:resnet50 --weights mine.pth --version 2
    gnomon models add my-model --from training/network.py:make
    gnomon models add my-model --from package.network:Network --shape 3x224x224
    gnomon models add my-model --from captured/ --version 2
    gnomon models add resnet50 --from torchvision:resnet50
    """,
)
@click.argument("name")
@folder_options
@click.option(
    "--weights",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=None,
    help="State dict for an architecture of torchvision or Ultralytics.",
)
@click.option(
    "--from",
    "source",
    default="",
    metavar="SOURCE",
    help="What NAME is: FILE.py:CALLABLE or MODULE:CALLABLE that returns the module and an example of its inputs, a model of the "
    f"catalog, or a folder with {PROGRAM} and {WEIGHTS}.",
)
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="3x224x224",
    help="Of one sample of an input, float32, where the callable returns the module alone; once for each input.",
)
@click.option("--version", default="1", help="Under which it is kept; default 1. A version never changes.")
@json_option
def add(
    *,
    name: str,
    folder: str,
    state: str,
    weights: Path | None,
    source: str,
    shapes: tuple[str, ...],
    version: str,
    as_json: bool,
) -> None:
    """Put a model into the repository: one of the catalog, or your own."""
    repository = model_repository(folder, state)
    if source:
        sizes = [_shape(shape) for shape in shapes]
        entry = add_from(repository, name, source, version=version, shapes=sizes, weights=weights, progress=note)
    elif shapes:
        raise WrongCommand("--shape is of the inputs of a module of your own, which --from names.", "Leave it out, or say both.")
    else:
        entry = ensure_model(repository, name, version=version, weights=weights, progress=note)
    if as_json:
        print_json(_document(entry))
    else:
        click.echo(f"{entry.name}@{entry.version} is in the repository. Serve it with the annotation gnomon/model: {entry.name}")


@models.command(
    cls=Command,
    examples="""
    gnomon models show efficientnet-lite0
    gnomon models show efficientnet-lite0@1 --json
    gnomon models show torchvision:resnet50 --blocks
    """,
)
@click.argument("reference")
@folder_options
@click.option("--blocks", is_flag=True, help="Its layer blocks: what a Shadow can hold.")
@json_option
def show(*, reference: str, folder: str, state: str, blocks: bool, as_json: bool) -> None:
    """Show what a model takes and gives, where its files are, and its layer blocks."""
    entry = model_repository(folder, state).get(reference)
    layers = _layers_of(entry) if blocks else None
    if as_json:
        print_json(_document(entry) | ({} if layers is None else {"blocks": _blocks_document(layers)}))
        return
    click.echo(f"{entry.name}@{entry.version}  {entry.signature.kind or 'tensors in, tensors out'}")
    for direction, tensors in (("in ", entry.signature.inputs), ("out", entry.signature.outputs)):
        for tensor in tensors:
            click.echo(
                f"  {direction}  {tensor.name}: {tensor.datatype} {'×'.join(map(str, tensor.shape)) or 'scalar'} per sample"
            )
    for path in (entry.program, entry.weights):
        click.echo(f"  {path} ({path.stat().st_size / 1e6:.1f} MB)")
    if layers is not None:
        _show_blocks(layers)


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


def _layers_of(entry: ModelEntry) -> Layers:
    if entry.layers is None:
        raise CommandFailed(f"{entry.name}@{entry.version} has no layer blocks.", "Add it again with `gnomon models add`.")
    return Layers.from_json(json.loads(entry.layers.read_bytes()))


def _blocks_document(layers: Layers) -> list[dict[str, Any]]:
    """Each block as in `layers.json`, with what it alone would have a Shadow given and give back, per sample."""
    numbered = enumerate(zip(layers.to_json()["blocks"], layers.blocks, strict=True))
    return [{"number": number} | document | _crossing(layers, block) for number, (document, block) in numbered]


def _crossing(layers: Layers, block: Block) -> dict[str, int]:
    there, back = (sum(layers.value_bytes[name] for name in names) for names in (block.reads, block.makes))
    return {"input_bytes": there, "output_bytes": back}


def _show_blocks(layers: Layers) -> None:
    rows = []
    for number, block in enumerate(layers.blocks):
        moved = (f"{size_bytes / 1e6:.2f}" for size_bytes in _crossing(layers, block).values())
        cost = (f"{block.macs / 1e6:.0f}", f"{block.parameter_bytes / 1e6:.2f}", *moved)
        rows.append((str(number), block.name, *cost, "yes" if block.splittable else "no"))
    print_table(("#", "BLOCK", "M MACS", "MB", "MB IN", "MB OUT", "SPLIT"), rows)
    click.echo(f"{layers.macs() / 1e9:.2f} G multiply-accumulates a sample, {layers.parameter_bytes() / 1e6:.1f} MB of weights")


def _shape(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(size) for size in text.lower().split("x") if size)
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 1:
        raise click.BadParameter(f"{text!r} is no shape such as 3x224x224.")
    return sizes


def _document(entry: ModelEntry) -> dict[str, Any]:
    files = {"program": str(entry.program), "weights": str(entry.weights)}
    if entry.layers:
        files["layers"] = str(entry.layers)
    return {
        "name": entry.name,
        "version": entry.version,
        "signature": entry.signature.to_json(),
        "files": files,
        "sha256": dict(entry.sha256),
    }


def _size_mb(entry: ModelEntry) -> float:
    return (entry.program.stat().st_size + entry.weights.stat().st_size) / 1e6
