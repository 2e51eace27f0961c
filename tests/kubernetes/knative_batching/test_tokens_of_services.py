"""Two services of one namespace, each with a key of its own in its Secret, on a real API server with what images run as pods."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path

import aiohttp

from gnomon_core.wire import encode
from gnomon_platforms.testing import request_frame
from tests.cluster.client import Cluster
from tests.kubernetes.knative_autoscaler.played_knative import PlayedKnative
from tests.kubernetes.knative_autoscaler.test_reconciler import running
from tests.kubernetes.knative_batching.conftest import HANDLER, SECRET
from tests.kubernetes.knative_batching.pods import QUEUE_PORT, Pod
from tests.kubernetes.knative_batching.test_serving_revisions import BATCHES, all_of, ingress, serving

TOKENS = {"one": "the token of one", "two": "the token of two"}


async def test_both_get_batches_and_neither_is_let_in_at_the_other(
    knative_kinds: Cluster, knative: PlayedKnative, tmp_path: Path
) -> None:
    (tmp_path / "handler.py").write_text(HANDLER)
    seen: dict[str, list[tuple[str, int]]] = defaultdict(list)
    addresses: dict[str, str] = {}

    def begins(revision: str, address: str) -> Pod:
        service = revision.partition("-")[0]
        addresses[service] = address
        return Pod(address, tmp_path, seen[service], token=TOKENS[service])

    knative.begins = begins
    secret = {"metadata": {"name": SECRET}, "stringData": TOKENS}
    await asyncio.to_thread(knative_kinds.core.create_namespaced_secret, knative.namespace, secret)
    async with running(knative_kinds, knative), serving(knative_kinds, knative) as gateway:
        for service in TOKENS:
            env = [{"name": "GNOMON_BATCH_TOKEN", "valueFrom": {"secretKeyRef": {"name": SECRET, "key": service}}}]
            knative.revision(f"{service}-00001", {**BATCHES, "autoscaling.knative.dev/min-scale": "1"}, env=env)
        for service in TOKENS:
            async with ingress(gateway, knative, f"{service}-00001") as user:
                assert await all_of(user, [b"x"] * 8) == [(200, b"x")] * 8
            assert seen[service] == [("/gnomon/batch", 8)]
        assert [await knocked(addresses["two"], TOKENS[service]) for service in TOKENS] == [401, 200]
        assert [await knocked(addresses["one"], TOKENS[service]) for service in TOKENS] == [200, 401]


async def knocked(address: str, token: str) -> int:
    """The answer of a pod to a batch with this token."""
    body = encode(request_frame(b"x"))
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as session,
        session.post(f"http://{address}:{QUEUE_PORT}/gnomon/batch", data=body) as answer,
    ):
        return answer.status
