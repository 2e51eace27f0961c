"""`gnomon models`: the model repository, profiles of its models, and figures of profiles.

The repository is a folder of layer programs and weights that functions name by `gnomon/model`. A model of the catalog is
captured here, once; one of your own comes from the callable that makes it, from an ONNX file, a folder of transformers or a
file of skops, or as the files that `gnomon_profiler.extractor.capture` gives. Models in the repository have been checked, and
`verify` reads every byte again. With `-g URL`, `add` uploads to a server, and `list` and `show` are about its models.

`profile` measures for minutes how fast a model runs here, block by block, and how long it takes to load. It prints results as
it goes and can be interrupted: the same command continues. `profiles` lists what was measured and shows one model's tables;
cores beyond the measured ones are marked and follow from a serial fraction. `figures` draws AsyFunc's figures from profiles.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from gnomon_cli.command import Command
from gnomon_cli.model_repository import (
    RemoteModels,
    check_source,
    folder_options,
    model_repository,
    profile_store,
    source_options,
)
from gnomon_cli.options import Target, json_option, server_options
from gnomon_cli.output import CommandFailed, note, print_json, print_table
from gnomon_core.blocks import Block, Layers
from gnomon_core.engines import (
    AGREEMENT,
    AUTO,
    ENGINES,
    FP32,
    PRECISIONS,
    PROGRAM,
    REPORT,
    EngineReport,
    cpu_arithmetic,
    read_report,
)
from gnomon_core.interfaces import ModelEntry
from gnomon_core.packaging import how_to_install
from gnomon_core.profiles import ModelProfile, Points
from gnomon_core.signature import ModelSignature
from gnomon_profiler.add import add_from, ensure_model
from gnomon_profiler.engines import add_engines, add_samples
from gnomon_profiler.figures.plots import draw
from gnomon_profiler.figures.tables import correlation, drawable, short_name, write_tables
from gnomon_profiler.measuring.assembly import ReadyTimes
from gnomon_profiler.measuring.cells import TRIES
from gnomon_profiler.measuring.profiling import MAX_BATCH, REPEATS, ProfileOptions, parse_numbers, profile_model
from gnomon_profiler.measuring.store import read_profile, write_profile
from gnomon_profiler.names import known_names
from gnomon_profiler.repository import PROGRAM as PROGRAM_FILE
from gnomon_profiler.repository import WEIGHTS, share_profile


@click.group()
def models() -> None:
    """Add, list, verify and profile models."""


def _precision_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options that say which precisions a model gets, and by which samples they are judged."""
    for option in reversed((
        click.option(
            "--precision",
            "precisions",
            multiple=True,
            type=click.Choice((*PRECISIONS, AUTO)),
            default=(FP32,),
            help="Precision to add besides fp32; auto: all. Repeatable.",
        ),
        click.option(
            "--validate",
            "validation",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="A validation set (.npz with `samples` and `labels`), on which accuracies are measured.",
        ),
        click.option(
            "--samples",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="Inputs (.npz) for int8's ranges and for agreement; default: of the validation set, else photographs.",
        ),
    )):  # fmt: skip
        command = option(command)
    return command


@models.command(
    "list",
    cls=Command,
    examples="""
    gnomon models list
    gnomon models list --catalog
    gnomon models list -g http://server:8080
    """,
)
@folder_options
@server_options
@click.option("--catalog", is_flag=True, help="List the models that `add` knows, not those in the repository.")
@json_option
def list_models(*, folder: str, state: str, target: Target | None, catalog: bool, as_json: bool) -> None:
    """List the models in the repository, or in a server's with -g."""
    if catalog:
        print_json(list(known_names())) if as_json else click.echo("\n".join(known_names()))
        return
    if target is not None:
        documents = RemoteModels(target.gateway()).list()
        found = [_Model.of_document(document) for document in documents]
    else:
        entries = list(model_repository(folder, state).list())
        documents = [_document(entry) for entry in entries] if as_json else []
        found = [_Model.of_entry(entry, details=False) for entry in entries]
    if as_json:
        print_json(documents)
        return
    rows = [(model.name, model.version, model.signature.kind or "tensors", f"{model.size_mb():.1f}") for model in found]
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
    gnomon models add my-model --from exported.onnx
    gnomon models add my-model --from exported.onnx --shape 128 --shape 128
    gnomon models add reviews --from distilbert-base/ --length 64
    gnomon models add reviews --from https://huggingface.co/ORGANISATION/NAME --length 64
    gnomon models add iris --from estimator.skops
    gnomon models add my-model --from network.py:make --precision auto --validate labelled.npz
    gnomon models add iris --from estimator.skops -g http://server:8080
    """,
)
@click.argument("name")
@folder_options
@server_options
@click.option(
    "--weights",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=None,
    help="State dict for an architecture of torchvision or Ultralytics.",
)
@source_options
@click.option("--version", default="1", help="Version of the model; default 1. A version never changes.")
@click.option("--engines/--no-engines", default=True, help="Convert the model for the installed engines; the default.")
@_precision_options
@json_option
def add(
    *,
    name: str,
    folder: str,
    state: str,
    target: Target | None,
    weights: Path | None,
    source: str,
    shapes: tuple[tuple[int, ...], ...],
    length: int | None,
    version: str,
    engines: bool,
    precisions: tuple[str, ...],
    validation: Path | None,
    samples: Path | None,
    as_json: bool,
) -> None:
    """Put a model into the repository: one of the catalog, your own, or one in the format of another tool.

    With -g it is captured here, put into the repository here, and uploaded to the server. One that is here already is uploaded
    as it is.
    """
    remote = None if target is None else RemoteModels(target.gateway())
    if remote is not None:
        remote.find(f"{name}@{version}")  # a server that refuses says so before minutes of capturing
    repository = model_repository(folder, state)
    if source:
        entry = add_from(
            repository, name, source, version=version, shapes=shapes, weights=weights, length=length or 0, progress=note
        )
    else:
        check_source(source, shapes, length or 0)
        entry = ensure_model(repository, name, version=version, weights=weights, progress=note)
    entry = add_samples(repository, entry, validation, samples)
    if engines:
        entry = add_engines(repository, entry, progress=note, precisions=precisions)
    document = _document(entry) if remote is None else remote.upload(entry, note)
    if as_json:
        print_json(document)
    else:
        place = "in the repository" if target is None else f"on {target.url()}"
        click.echo(f"{entry.name}@{entry.version} is {place}. Serve it with the annotation gnomon/model: {entry.name}")


@models.command(
    cls=Command,
    examples="""
    gnomon models show efficientnet-lite0
    gnomon models show efficientnet-lite0@1 --json
    gnomon models show torchvision:resnet50 --blocks
    gnomon models show my-model@2 -g http://server:8080
    """,
)
@click.argument("reference")
@folder_options
@server_options
@click.option("--blocks", is_flag=True, help="Show the layer blocks, which a Shadow can hold.")
@json_option
def show(*, reference: str, folder: str, state: str, target: Target | None, blocks: bool, as_json: bool) -> None:
    """Show what a model takes and gives, its files, and its layer blocks."""
    if target is not None:
        document = RemoteModels(target.gateway()).get(reference, layers=blocks)
        model = _Model.of_document(document)
    else:
        entry = model_repository(folder, state).get(reference)
        document, model = _document(entry), _Model.of_entry(entry, details=True)
    if blocks and model.layers is None:
        raise CommandFailed(f"{model.name}@{model.version} has no layer blocks.", "Add it again with `gnomon models add`.")
    if as_json:
        document.pop("layers", None)
        print_json(document | ({"blocks": _blocks_document(model.layers)} if blocks and model.layers is not None else {}))
        return
    click.echo(f"{model.name}@{model.version}  {model.signature.kind or 'tensors in, tensors out'}")
    for direction, tensors in (("in ", model.signature.inputs), ("out", model.signature.outputs)):
        for tensor in tensors:
            click.echo(
                f"  {direction}  {tensor.name}: {tensor.datatype} {'×'.join(map(str, tensor.shape)) or 'scalar'} per sample"
            )
    for file, size in model.files.items():
        click.echo(f"  {file} ({size / 1e6:.1f} MB)")
    if model.engines is not None:
        _show_engines(model.engines)
    if blocks and model.layers is not None:
        _show_blocks(model.layers)


@dataclass(frozen=True, slots=True)
class _Model:
    """A model of this machine's repository or of a server's, as it is shown. `files` are the program's and the weights' sizes."""

    name: str
    version: str
    signature: ModelSignature
    files: Mapping[str, int]
    engines: EngineReport | None
    layers: Layers | None

    @staticmethod
    def of_entry(entry: ModelEntry, *, details: bool) -> _Model:
        return _Model(
            entry.name,
            entry.version,
            entry.signature,
            {str(path): path.stat().st_size for path in (entry.program, entry.weights)},
            read_report(entry.files[REPORT]).on_cpu(cpu_arithmetic()) if details and REPORT in entry.files else None,
            Layers.from_json(json.loads(entry.layers.read_bytes())) if details and entry.layers is not None else None,
        )

    @staticmethod
    def of_document(document: Mapping[str, Any]) -> _Model:
        try:
            return _Model(
                document["name"],
                document["version"],
                ModelSignature.from_json(document["signature"]),
                {file: document["files"][file] for file in (PROGRAM_FILE, WEIGHTS)},
                EngineReport.from_json(document["engines"]) if "engines" in document else None,
                Layers.from_json(document["layers"]) if "layers" in document else None,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CommandFailed(f"The server describes a model in another way: {error!r}.", "Is it of this version?") from None

    def size_mb(self) -> float:
        return sum(self.files.values()) / 1e6


def _show_engines(report: EngineReport) -> None:
    """Print each engine's time beside the program's and its difference to the program's answers, or why it is not offered."""
    batches = sorted(report.program.latency_s)
    rows = []
    for name in (PROGRAM, *report.engines):
        result = report.result(name)
        times = [_milliseconds(result.latency_s.get(batch)) for batch in batches]
        share = f"{report.share(name):.2f}" if result.latency_s else "-"
        shares = [_share(result.agreement), _share(result.accuracy)]
        said = result.reason or ("auto" if name == report.auto else "offered")
        rows.append((name, *times, share, f"{result.error:.1e}", *shares, said))
    click.echo("")
    head = ("ENGINE", *(f"b={batch} ms" for batch in batches), "OF THE PROGRAM", "ERROR", "AGREEMENT", "ACCURACY", "")
    print_table(head, rows)
    click.echo(
        f"one core of {report.machine}; in fp32 an error up to {report.tolerance:g} of the largest number of an output is allowed"
    )
    if report.samples:
        needed = " and ".join(f"{share:g} in {precision}" for precision, share in AGREEMENT.items())
        click.echo(f"agreement: share of {report.samples} with the program's top-1 class; {needed} is needed")


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


@models.command(
    cls=Command,
    examples="""
    gnomon models convert efficientnet-lite0
    gnomon models convert my-model@2 --engine openvino
    gnomon models convert my-model --precision int8 --validate labelled.npz
    """,
)
@click.argument("reference")
@folder_options
@click.option("--engine", "engines", multiple=True, help="Engine to convert for; default: all that are installed.")
@_precision_options
@json_option
def convert(
    *,
    reference: str,
    folder: str,
    state: str,
    engines: tuple[str, ...],
    precisions: tuple[str, ...],
    validation: Path | None,
    samples: Path | None,
    as_json: bool,
) -> None:
    """Convert a model for faster engines and other precisions, compare their answers with the program's, and time all of them.

    `add` and a server that serves the model do this by themselves. A model is converted once; precisions and a validation set can
    be added later.
    """
    repository = model_repository(folder, state)
    entry = add_samples(repository, repository.get(reference), validation, samples)
    entry = add_engines(repository, entry, engines, note, precisions=precisions)
    if REPORT not in entry.files:
        raise CommandFailed("No engine besides the layer program's is installed.", how_to_install("openvino"))
    report = read_report(entry.files[REPORT])
    print_json(report.to_json()) if as_json else _show_engines(report)


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


def _blocks_document(layers: Layers) -> list[dict[str, Any]]:
    """Each block as in `layers.json`, with the bytes per sample that a Shadow of it alone would take and return."""
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


SHOWN_BEYOND = (4, 8, 16)
"""Numbers of cores that are shown extrapolated if they were not measured, up to AsyFunc's C_max."""
SERIAL_PERCENT = "2,5,10"


class Numbers(click.ParamType[tuple[int, ...]]):
    """`1,2,4-6`."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return parse_numbers(value)
        except ValueError:
            self.fail(f"{value!r} is not a list of numbers such as 1,2,4-6.", param, ctx)


@models.command(
    cls=Command,
    examples="""
    gnomon models profile efficientnet-lite0
    gnomon models profile torchvision:resnet50@1 --cores 1,2 --batches 1-8
    gnomon models profile my-model --output my-model.json
    gnomon models profile my-model --afresh
    """,
)
@click.argument("name")
@folder_options
@click.option(
    "--cores",
    type=Numbers(),
    default=(),
    metavar="LIST",
    help="Numbers of cores, such as 1,2,4; default: 1 to all of this machine's.",
)
@click.option("--batches", type=Numbers(), default=f"1-{MAX_BATCH}", metavar="LIST", help=f"Default 1-{MAX_BATCH}.")
@click.option(
    "--repeats", type=click.IntRange(min=3), default=REPEATS, help=f"Least number of runs of each batch; default {REPEATS}."
)
@click.option(
    "--tries", type=click.IntRange(min=1), default=TRIES, help=f"How often a noisy batch is measured at most; default {TRIES}."
)
@click.option(
    "--engine",
    type=click.Choice((AUTO, *ENGINES)),
    default=AUTO,
    help="Engine to measure; default: the one that functions use.",
)
@click.option("--precision", type=click.Choice(PRECISIONS), default=FP32, help="Precision to measure; default fp32.")
@click.option("--afresh", is_flag=True, help="Replace this machine's profile: measure everything again.")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    default=None,
    help="Write the profile to this file as well.",
)
@json_option
def profile(
    *,
    name: str,
    folder: str,
    state: str,
    cores: tuple[int, ...],
    batches: tuple[int, ...],
    repeats: int,
    tries: int,
    engine: str,
    precision: str,
    afresh: bool,
    output: Path | None,
    as_json: bool,
) -> None:
    """Measure a model on this machine: latency of each block by cores and batch, loading, memory, hand-over.

    Let nothing else run meanwhile. What is finished is kept when this is interrupted, and the same command goes on from there.
    Other cores and batches are added to the profile that there is of the same model, machine and versions.
    """
    repository = model_repository(folder, state)
    entry = repository.get(name)
    options = ProfileOptions(cores, batches, repeats, tries, afresh, engine, precision)

    def ready(model: ModelEntry) -> ReadyTimes:
        from gnomon_cli.measure_starts import measure_starts  # noqa: PLC0415 - a platform takes a while to import

        note(f"{name}: starts on the local platform")
        return measure_starts(repository, model)

    try:
        measured, path = profile_model(entry, profile_store(folder, state), options, note, ready)
    except KeyboardInterrupt:
        note("\nInterrupted. What was measured is kept; the same command goes on from there.")
        raise
    if as_json:
        print_json(measured.to_json())
    else:
        _show(measured, _fractions(parse_numbers(SERIAL_PERCENT)))
        click.echo(f"\nStored in {path}")
    if output is not None:
        write_profile(output, measured)
    share_profile(repository, measured.model, path)


@models.command(
    cls=Command,
    examples="""
    gnomon models profiles
    gnomon models profiles torchvision:resnet50@1
    gnomon models profiles torchvision:resnet50@1 --serial 3
    gnomon models profiles --file profiles/resnet50.json
    """,
)
@click.argument("name", required=False, default="")
@folder_options
@click.option("--file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Show the profile in this file.")
@click.option(
    "--serial",
    type=Numbers(),
    default=SERIAL_PERCENT,
    metavar="PERCENT,…",
    help=f"Of which cores beyond the measured ones follow by Amdahl's law; default {SERIAL_PERCENT}.",
)
@json_option
def profiles(*, name: str, folder: str, state: str, file: Path | None, serial: tuple[int, ...], as_json: bool) -> None:
    """List the profiles, or show those of one model."""
    if file is not None:
        stored_profiles = [(file, _read(file))]
    else:
        reference = _reference(name, folder, state) if name else None
        stored_profiles = list(profile_store(folder, state).list(reference))
        if name and not stored_profiles:
            raise CommandFailed(f"{reference} has no profile.", f"Measure it: gnomon models profile {name}")
    fractions = _fractions(serial)
    if as_json:
        print_json(
            [
                profile.to_json() | {"extrapolated": [_beyond(profile, each) for each in fractions]}
                for _, profile in stored_profiles
            ]
        )
    elif name or file is not None:
        for path, profile in stored_profiles:
            click.echo(f"{profile.model}  {path}")
            _show(profile, fractions)
    else:
        _list(stored_profiles)


def _reference(name: str, folder: str, state: str) -> str:
    entry = model_repository(folder, state).get(name)
    return f"{entry.name}@{entry.version}"


def _read(file: Path) -> ModelProfile:
    try:
        return read_profile(file)
    except ValueError as error:
        raise CommandFailed(f"{file} is no profile: {error}.") from None


def _list(stored_profiles: Sequence[tuple[Path, ModelProfile]]) -> None:
    rows = [
        (
            profile.model,
            path.stem,
            ",".join(map(str, sorted(profile.whole.seconds))),
            len(profile.blocks),
            f"{100 * max(profile.spread.values(), default=0):.0f} %",
            profile.provenance.get("date", ""),
        )
        for path, profile in stored_profiles
    ]
    print_table(("MODEL", "MACHINE", "CORES", "BLOCKS", "WORST SPREAD", "DATE"), rows)


def _show(profile: ModelProfile, serial_fractions: tuple[float, ...]) -> None:
    """The whole model's latencies, its blocks at the smallest and largest batch, and the rest in a line each."""
    batches = sorted({batch for row in profile.whole.seconds.values() for batch in row})
    print_table(("CORES", *(f"b={batch}" for batch in batches), "ms"), list(_latency_rows(profile, batches, serial_fractions)))
    click.echo("")
    header = ("BLOCK", "MB", "GMAC", *(f"b={batch} ms" for batch in batches), "SPREAD", "LOAD ms")
    print_table(header, list(_block_rows(profile, batches)))
    click.echo("")
    for mode, loading in profile.loading.items():
        points = _format_points(profile.measurements.loading.get(mode), loading.fixed_s, loading.seconds_per_byte)
        click.echo(f"load {mode}: {1000 * loading.fixed_s:.2f} ms + {1e9 * loading.seconds_per_byte:.3f} ms/MB{points}")
    click.echo(f"start: Body {1000 * profile.body_start_s:.1f} ms, Shadow {1000 * profile.shadow_start_s:.1f} ms, before loading")
    points = _format_points(profile.measurements.transfer, profile.transfer_fixed_s, profile.transfer_seconds_per_byte)
    click.echo(
        f"hand-over: {1e6 * profile.transfer_fixed_s:.0f} µs + {1e9 * profile.transfer_seconds_per_byte:.3f} ms/MB, "
        f"each way{points}"
    )
    if (network := profile.network) is not None:
        price = f"{1e6 * network.fixed_s:.0f} µs + {1e9 * network.seconds_per_byte:.3f} ms/MB, each way"
        points = _format_points(profile.measurements.network, network.fixed_s, network.seconds_per_byte)
        click.echo(f"to another node: {price} ({network.source}){points}")
    click.echo(f"memory besides weights: {profile.overhead_bytes / 1e6:.1f} MB")
    click.echo(f"a GMAC: {1000 * profile.core_seconds_per_gmac():.1f} core-ms")
    for key, value in profile.provenance.items():
        click.echo(f"{key}: {value}")


def _latency_rows(
    profile: ModelProfile, batches: Sequence[int], serial_fractions: tuple[float, ...]
) -> Iterator[tuple[object, ...]]:
    for cores in sorted(profile.whole.seconds):
        cells = (_milliseconds(profile.whole.seconds[cores].get(batch)) for batch in batches)
        spread = max((profile.spread.get(f"{cores}/{batch}", 0.0) for batch in batches), default=0.0)
        yield (cores, *cells, f"measured, spread up to {100 * spread:.1f} %")
    for serial in serial_fractions:
        table = profile.extrapolated(serial).whole
        for cores in _cores_beyond(profile):
            cells = (_milliseconds(table.at(cores, batch)) for batch in batches)
            yield (f"{cores}*", *cells, f"extrapolated, {100 * serial:g} % serial")


def _fractions(percents: Sequence[int]) -> tuple[float, ...]:
    return tuple(percent / 100 for percent in percents)


def _cores_beyond(profile: ModelProfile) -> list[int]:
    return [cores for cores in SHOWN_BEYOND if cores > max(profile.whole.seconds, default=cores)]


def _beyond(profile: ModelProfile, serial: float) -> dict[str, Any]:
    """The cells of cores that were not measured, as the profile's document has those that were."""
    model = profile.extrapolated(serial)
    batches = sorted({batch for row in profile.whole.seconds.values() for batch in row})
    whole_s, *blocks_s = (
        {str(cores): {str(batch): table.at(cores, batch) for batch in batches} for cores in _cores_beyond(profile)}
        for table in (model.whole, *model.blocks)
    )
    return {"serial_fraction": serial, "whole_s": whole_s, "blocks_s": blocks_s}


def _block_rows(profile: ModelProfile, batches: Sequence[int]) -> Iterator[tuple[object, ...]]:
    cores = min(profile.whole.seconds)
    loads_s = next(iter(profile.block_load_s.values()), (0.0,) * len(profile.blocks))
    for number, (block, table, load_s) in enumerate(zip(profile.layers.blocks, profile.blocks, loads_s, strict=True)):
        cells = (_milliseconds(table.seconds.get(cores, {}).get(batch)) for batch in batches)
        worst = profile.measurements.worst_block_spread(number)
        spread = "-" if worst is None else f"{100 * worst:.1f} %"
        size = (f"{block.parameter_bytes / 1e6:.2f}", f"{block.macs / 1e9:.3f}")
        yield (block.name, *size, *cells, spread, _milliseconds(load_s))


def _format_points(points: Points | None, fixed_s: float, seconds_per_byte: float) -> str:
    """The points that a line was fitted to, and the quality of the fit; empty for a profile without them."""
    if points is None or not points.sizes_bytes:
        return ""
    sizes = f"{len(points.sizes_bytes)} sizes up to {max(points.sizes_bytes) / 1e6:.1f} MB"
    off = points.off(fixed_s, seconds_per_byte)
    return f"; {sizes}, spread up to {100 * points.spread:.0f} %, up to {100 * off:.0f} % off the line"


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.2f}"


@models.command(
    cls=Command,
    examples="""
    gnomon models figures profiles/*.json --output figures
    gnomon models figures profiles/resnet50.json --output figures --cores 2 --tables-only
    """,
)
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--output", required=True, type=click.Path(file_okay=False, path_type=Path), help="Folder for CSV and PNG files.")
@click.option("--cores", type=click.IntRange(min=1), default=1, help="Number of cores whose latencies are drawn; default 1.")
@click.option("--tables-only", is_flag=True, help="CSV files alone; pictures need matplotlib.")
def figures(*, files: tuple[Path, ...], output: Path, cores: int, tables_only: bool) -> None:
    """Write the figures of some profiles: block by block what a larger batch costs, what loading costs, what crosses."""
    profiles = []
    for file in files:
        try:
            profiles.append(read_profile(file))
        except ValueError as error:
            raise CommandFailed(f"{file} is no profile: {error}.") from None
    if any(cores not in profile.whole.seconds for profile in profiles):
        raise CommandFailed(f"Not all of these profiles were measured on {cores} cores.", "Choose other --cores.")
    if not all(drawable(profile, cores) for profile in profiles):
        raise CommandFailed("Not all of these profiles were measured in batches of 2 and 4.", "Profile them with --batches 1-8.")
    written = write_tables(profiles, output, cores)
    if not tables_only:
        written += draw(profiles, output, cores)
    found = [(short_name(profile), correlation(profile, cores)) for profile in profiles]
    rows = [(name, figure.blocks, f"{figure.pearson:.2f}", f"{figure.spearman:.2f}") for name, figure in found]
    print_table(("MODEL", "BLOCKS", "PEARSON", "SPEARMAN"), rows)
    click.echo(f"\n{len(written)} files in {output}")
