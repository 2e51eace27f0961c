"""Coordinators that end with their test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.coordinator.node import Coordinator, End, Instance, LaunchFds, layers_file


@pytest.fixture
def layers(tmp_path: Path) -> Path:
    return layers_file(tmp_path)


@pytest.fixture
def begin() -> Iterator[Callable[..., Coordinator]]:
    begun: list[Coordinator] = []

    def begin(
        epoch: int = 1, *instances: tuple[Instance, str], platform: End | None = None, complete: bool = True
    ) -> Coordinator:
        begun.append(Coordinator(epoch, instances, platform, complete=complete))
        return begun[-1]

    yield begin
    for coordinator in begun:
        coordinator.stop()


@pytest.fixture
def make() -> Iterator[Callable[[str], Instance]]:
    made: list[Instance] = []

    def make(name: str) -> Instance:
        made.append(Instance(name))
        return made[-1]

    yield make
    for instance in made:
        instance.close()


@pytest.fixture
def launch_fds() -> Iterator[LaunchFds]:
    held = LaunchFds()
    yield held
    held.close()
