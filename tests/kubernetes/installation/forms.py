"""Applied objects by name: of a kustomization, of the chart with some values, and as a user's own kustomization has it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster import build
from tests.cluster.settings import folders

DEPLOY = Path(__file__).parents[3] / "deploy"
CHART = DEPLOY / "charts" / "gnomon"
Manifest = dict[str, Any]
Name = tuple[str, str | None, str]
"""Kind, namespace, name."""
Kustomized = Callable[[Path], dict[Name, Manifest]]


def overlaid(folder: Path, base: str, images: Mapping[str, str], **more: Any) -> Path:
    """A user's kustomization: one of ours, each image by the name that they have for it, and what else they say."""
    parts = {name: reference.rpartition(":") for name, reference in images.items()}
    named = [{"name": name, "newName": where, "newTag": tag} for name, (where, _, tag) in parts.items()]
    document = {"resources": [os.path.relpath(DEPLOY / base, folder.resolve())], "images": named, **more}
    (folder / "kustomization.yaml").write_text(json.dumps(document))
    return folder


def by_name(objects: Iterable[Manifest | None]) -> dict[Name, Manifest]:
    """Objects by what tells them from each other."""
    return {(row["kind"], row["metadata"].get("namespace"), row["metadata"]["name"]): row for row in objects if row}


def kustomization(kubectl: Path, folder: Path) -> dict[Name, Manifest]:
    """The objects that `kubectl apply -k` applies."""
    done = subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return by_name(yaml.safe_load_all(done.stdout))


def chart(*values: str, namespace: str = "openfaas") -> dict[Name, Manifest]:
    """The objects that the chart renders from these values in this namespace, without the objects that only helm needs."""
    found = by_name(yaml.safe_load_all(_helm(["template"], ["--kube-version", "1.35.0"], values, namespace, Path(os.devnull))))
    for row in found.values():
        annotations = row["metadata"].get("annotations", {})
        annotations.pop("helm.sh/resource-policy", None)
        if not annotations:
            row["metadata"].pop("annotations", None)
    return found


def notes(kubeconfig: Path, *values: str, namespace: str = "openfaas") -> str:
    """The notes that helm prints when the chart is installed in this cluster with these values, in this namespace."""
    return _helm(["install", "--dry-run=client", "--take-ownership"], [], values, namespace, kubeconfig).partition("\nNOTES:\n")[
        2
    ]


def helm(kubeconfig: Path, *words: str) -> str:
    """The output of helm with this kubeconfig. Its discovery cache is kept beside that file."""
    kept = build.kept(folders(), build.HELM_SOURCES)
    if kept is None:
        pytest.skip("helm is not compiled: make cluster-build")
    places = ("KUBECACHEDIR", "HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME")
    learned = dict.fromkeys(places, str(kubeconfig.parent / "cache")) if kubeconfig.is_file() else {}
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig), **learned}
    done = subprocess.run([f"{kept.folder}/helm", *words], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def settings(*values: str) -> list[str]:
    """Values as helm's options."""
    return [word for value in values for word in ("--set-json", value)]


def _helm(command: list[str], more: list[str], values: tuple[str, ...], namespace: str, kubeconfig: Path) -> str:
    return helm(kubeconfig, *command, "gnomon", str(CHART), "--namespace", namespace, *settings(*values), *more)
