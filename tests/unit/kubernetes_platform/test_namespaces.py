"""Namespaces of functions: what users set by OpenFaaS's API is theirs to change, and what the owner has set is nobody else's."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.interfaces import StoredNamespace
from gnomon_platforms.kubernetes.writes import Create, Patch
from gnomon_platforms.openfaas.store import StoredNamespaces, marked, stored_namespace, unmarked

OWNERS = {
    "labels": {"kubernetes.io/metadata.name": "staging", "team": "vision", "istio-injection": "enabled"},
    "annotations": {"argocd.argoproj.io/tracking-id": "apps:staging", "note": "the owner's"},
}


def owned() -> dict[str, Any]:
    return {"metadata": {"name": "staging", **{field: dict(given) for field, given in OWNERS.items()}}}


def patched(document: dict[str, Any], patch: object) -> dict[str, Any]:
    """As the API server carries out a merge patch of metadata."""
    assert isinstance(patch, Patch)
    metadata = dict(document["metadata"])
    for field, changes in patch.changes["metadata"].items():
        changed = {**metadata.get(field, {}), **changes}
        metadata[field] = {key: value for key, value in changed.items() if value is not None}
    return {"metadata": metadata}


def test_what_its_owner_has_set_outlives_a_mark() -> None:
    one = StoredNamespace("staging", {"app.kubernetes.io/part-of": "shop"}, {"cost-centre": "7"})
    document = patched(owned(), marked(one, owned()))
    assert stored_namespace(document) == one
    other = StoredNamespace("staging", {"stage": "two"}, {})
    document = patched(document, marked(other, document))
    assert stored_namespace(document) == other
    assert OWNERS["labels"].items() <= document["metadata"]["labels"].items()
    document = patched(document, unmarked(document))
    assert stored_namespace(document) is None
    assert document == owned()
    assert unmarked(document) is None


def test_one_that_is_made_here_takes_restricted_pods_only_and_comes_back_as_it_was_asked_for() -> None:
    made = marked(StoredNamespace("dev", {"team": "a"}), None)
    assert isinstance(made, Create)
    assert made.manifest["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert stored_namespace(made.manifest) == StoredNamespace("dev", {"team": "a"})


@pytest.mark.parametrize("text", ["[", "3", '{"labels": 3}', "[" * 100_000])
def test_a_list_of_keys_that_somebody_has_spoilt_names_none(text: str) -> None:
    document = {"metadata": {"name": "a", "labels": {"b": "c"}, "annotations": {"openfaas": "1", "gnomon/set": text}}}
    assert stored_namespace(document) == StoredNamespace("a")


@pytest.mark.parametrize("key", ["pod-security.kubernetes.io/enforce", "kubernetes.io/metadata.name"])
def test_what_pods_may_do_is_not_loosened_here(key: str) -> None:
    namespaces = StoredNamespaces(cast("Any", None), cast("Any", None), lambda: None, all_=True)
    with pytest.raises(GnomonError) as refused:
        asyncio.run(namespaces.put(StoredNamespace("dev", {key: "privileged"})))
    assert (refused.value.status, refused.value.code) == (400, "invalid_label")
