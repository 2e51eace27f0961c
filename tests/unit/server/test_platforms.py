"""The registry of platforms: every line leads to a backend, and a missing package is refused with what to install."""

from __future__ import annotations

import importlib
import importlib.util

import pytest

from gnomon_core.errors import GnomonError
from gnomon_server.platforms import PLATFORMS, Backend, require


@pytest.mark.parametrize("name", PLATFORMS)
def test_every_platform_has_a_backend(name: str) -> None:
    entry = PLATFORMS[name]
    assert issubclass(getattr(importlib.import_module(entry.module), entry.backend), Backend)
    require(name)


@pytest.mark.parametrize(("name", "package"), [("lambda", "boto3"), ("openfaas", "kubernetes")])
def test_a_platform_without_its_package_says_what_to_install(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(GnomonError, match=f"needs the Python package {package}") as refused:
        require(name)
    assert refused.value.code == "package_missing"
    require("local")
