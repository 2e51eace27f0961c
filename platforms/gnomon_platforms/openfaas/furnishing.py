"""What a function needs beside its Deployment: a Service, a Secret with the token of its batch route, and a bound for evictions.

They belong to the Deployment, so that Kubernetes removes them with it. They are made once; a token that is there is kept, because
pods that run know no other.
"""

from __future__ import annotations

import secrets as chance_of_tokens

from gnomon_core.functions import FunctionSpec
from gnomon_platforms.kubernetes.api import Document
from gnomon_platforms.kubernetes.errors import Refused
from gnomon_platforms.kubernetes.objects.manifests import batch_token, disruption_budget, owned_by, service
from gnomon_platforms.kubernetes.objects.names import MANAGED_LABEL
from gnomon_platforms.kubernetes.resources import DISRUPTION_BUDGETS, SECRETS, SERVICES
from gnomon_platforms.kubernetes.writes import PATIENCE_S, Create, Decide, Target, Write, Writer

TOKEN_BYTES = 32
CONFLICT = 409


async def furnish(writer: Writer, spec: FunctionSpec, deployed: Document, *, patience_s: float = PATIENCE_S) -> None:
    """Make them for a function whose Deployment this is, where they are not there.

    Raises:
        GnomonError: what the API server refuses; 409 `kubernetes_conflict` while those of a predecessor are there.

    """
    token = batch_token(spec.key, chance_of_tokens.token_hex(TOKEN_BYTES))
    for resource, manifest in ((SECRETS, token), (SERVICES, service(spec)), (DISRUPTION_BUDGETS, disruption_budget(spec))):
        owned = owned_by(manifest, deployed)
        target = Target(resource, spec.key.namespace, manifest["metadata"]["name"])
        doing = f"make the {resource.kind} of {spec.key}"
        await writer.settle(target, _made_once(owned), doing, patience_s=patience_s)


def _made_once(manifest: Document) -> Decide:
    [owner] = manifest["metadata"]["ownerReferences"]

    def decide(seen: Document | None) -> Write | None:
        if seen is None:
            return Create(manifest)
        metadata = seen["metadata"]
        owners = {one["uid"] for one in metadata.get("ownerReferences") or ()}
        if owner["uid"] in owners or MANAGED_LABEL not in (metadata.get("labels") or {}):
            return None
        raise Refused(CONFLICT, "Conflict", f"{metadata['name']} goes with a function of this name that was removed a moment ago")

    return decide
