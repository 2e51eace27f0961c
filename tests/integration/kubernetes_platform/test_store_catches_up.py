"""Who begins to lead goes by all that was stored before, whatever its watch has told of it by then."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionSpec, read_deployment
from gnomon_platforms.kubernetes.objects.manifests import deployment
from gnomon_platforms.kubernetes.objects.pod_template import PodOptions
from gnomon_platforms.openfaas.store import KubernetesStore
from tests.integration.kubernetes_platform.scripted import Asked, Script, listed, refusal, serving

NAMESPACE = {
    "metadata": {"name": "team-a", "uid": "n1", "resourceVersion": "3", "annotations": {"openfaas": "1"}},
}


def stored(version: str, **annotations: str) -> dict[str, Any]:
    """A function's Deployment, as the API server has it."""
    made: dict[str, Any] = deployment(spec_of(**annotations), 1, PodOptions())
    made["metadata"] |= {"uid": "u1", "resourceVersion": version, "creationTimestamp": "2026-01-01T00:00:00Z"}
    return made


def spec_of(**annotations: str) -> FunctionSpec:
    given = {f"gnomon/{name}": value for name, value in annotations.items()}
    return read_deployment({"service": "figlet", "namespace": "openfaas-fn", "image": "i", "annotations": given})


class Silent(Script):
    """Its watches tell nothing. What it lists is another thing each time: `lists` of Deployments, `namespaces` of those."""

    def __init__(self, lists: list[Any], namespaces: list[Any]) -> None:
        super().__init__(lists)
        self._namespaces = namespaces

    def next(self, asked: Asked) -> Any:
        if asked.path.endswith("/namespaces") and "watch" not in asked.query:
            return self._namespaces.pop(0)
        return super().next(asked)


async def test_what_was_stored_and_not_heard_of_is_known_then() -> None:
    """The version is the same: only the settings have changed."""
    script = Silent([listed("5", stored("3")), listed("9", stored("8", gamma="0.5"))], [listed("5"), listed("9", NAMESPACE)])
    with serving(script) as api:
        store = await asyncio.to_thread(KubernetesStore, api)
        try:
            assert [one.spec.raw for one in store.functions()] == [spec_of().raw]
            await asyncio.to_thread(store.catch_up)
            assert [one.spec.raw for one in store.functions()] == [spec_of(gamma="0.5").raw]
            assert [one.name for one in store.namespaces()] == ["team-a"]
        finally:
            await asyncio.to_thread(store.close)


async def test_one_namespace_needs_no_look_at_the_others() -> None:
    script = Silent([listed("5"), listed("9", stored("8"))], [])
    with serving(script) as api:
        store = await asyncio.to_thread(lambda: KubernetesStore(api, namespace="openfaas-fn"))
        try:
            await asyncio.to_thread(store.catch_up)
            assert [str(one.spec.key) for one in store.functions()] == ["figlet.openfaas-fn"]
        finally:
            await asyncio.to_thread(store.close)


async def test_what_cannot_be_asked_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnomon_platforms.kubernetes.informer.Informer.resync.__defaults__", (0.5,))
    with serving(Silent([listed("5"), refusal(403, "Forbidden")], [listed("5")])) as api:
        store = await asyncio.to_thread(lambda: KubernetesStore(api, namespace="openfaas-fn"))
        try:
            with pytest.raises(GnomonError, match="list deployments"):
                await asyncio.to_thread(store.catch_up)
        finally:
            await asyncio.to_thread(store.close)
