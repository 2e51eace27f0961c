"""The registry of platforms: every line leads to a backend, and a missing package is refused with what to install."""

import importlib
import importlib.util

import pytest

from gnomon_server.platforms import PLATFORMS, Backend, require
from tests.refusals import refused


@pytest.mark.parametrize("name", PLATFORMS)
def test_every_platform_has_a_backend(name: str) -> None:
    entry = PLATFORMS[name]
    assert issubclass(getattr(importlib.import_module(entry.module), entry.backend), Backend)
    require(name)


@pytest.mark.parametrize(("name", "package"), [("lambda", "boto3"), ("openfaas", "kubernetes")])
def test_a_platform_without_its_package_says_what_to_install(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with refused(code="package_missing", match=f"needs the Python package {package}"):
        require(name)
    require("local")
