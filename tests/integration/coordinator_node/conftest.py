"""One node for all tests: its pool imports torch."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.coordinator_node.node import Node


@pytest.fixture(scope="session")
def node() -> Iterator[Node]:
    """In a short folder: sockets have addresses of at most 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="gnomon-"))
    made = Node(folder)
    yield made
    made.close()
    shutil.rmtree(folder)
