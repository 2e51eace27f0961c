"""Captured networks and a nursery of real instances, once for all tests of pairs."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from gnomon_profiler.catalog import load_model
from gnomon_profiler.extractor import Description, capture
from gnomon_runtime.engine import load_program
from tests.pair_harness import Child, Model, Nursery, Task

HALVES = (0, 1, 1, 2, 2, 3, 3, 4)
"""So many of 1 to 8 samples a Shadow takes: half of them."""


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    """A network by name, captured once."""
    made: dict[str, Model] = {}

    def get(name: str) -> Model:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            module, shape = network(name)
            for file, data in capture(module, (torch.zeros(1, *shape),), Description(name)).items():
                (folder / file).write_bytes(data)
            made[name] = Model(folder)
        return made[name]

    return get


def network(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    from torchvision import models as networks  # noqa: PLC0415 - seconds

    torch.manual_seed(0)
    if name == "efficientnet-lite0":
        return load_model(name).module, (3, 64, 64)
    if name == "inception_v3":
        return networks.inception_v3(weights=None, init_weights=False).eval().requires_grad_(requires_grad=False), (3, 107, 107)
    return getattr(networks, name)(weights=None).eval().requires_grad_(requires_grad=False), (3, 48, 48)


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    made = Nursery(tmp_path_factory.mktemp("nursery"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def expected() -> Callable[[Model, Tensor], Tensor]:
    """The model's own answer, on one thread as in the instances."""

    def answer(model: Model, x: Tensor) -> Tensor:
        torch.set_num_threads(1)
        options = model.options()
        return load_program(Path(options["program"]), Path(options["weights"])).executor.run([x])[0]

    return answer


@pytest.fixture(scope="session")
def model(models: Callable[[str], Model]) -> Model:
    return models("resnet18")


@pytest.fixture(scope="session")
def task(model: Model) -> Task:
    """The Shadow may take a second: this machine may be busy with other things."""
    return Task(model, [1, 2, 3, 4], HALVES, [[500.0] * 8])


@pytest.fixture(scope="session")
def x(model: Model) -> Tensor:
    return torch.randn(4, *model.signature.inputs[0].shape, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="session")
def whole(model: Model, x: Tensor, expected: Callable[[Model, Tensor], Tensor]) -> Tensor:
    return expected(model, x)


@pytest.fixture
def body(nursery: Nursery, model: Model) -> Iterator[Child]:
    made = nursery.body(model)
    yield made
    made.end()


@contextmanager
def within(seconds: float) -> Iterator[None]:
    began_s = time.monotonic()
    yield
    assert time.monotonic() - began_s < seconds
