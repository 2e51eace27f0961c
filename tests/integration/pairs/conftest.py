"""Captured networks and a nursery of real instances, once for all tests of pairs."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from gnomon_profiler.catalog import load_model
from gnomon_profiler.extractor import Description, capture
from gnomon_runtime.engine import load_program
from gnomon_runtime.pair.testing import Model, Nursery


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
    """What the model answers by itself, on one thread as in the instances."""

    def answer(model: Model, x: Tensor) -> Tensor:
        torch.set_num_threads(1)
        options = model.options()
        return load_program(Path(options["program"]), Path(options["weights"])).executor.run([x])[0]

    return answer
