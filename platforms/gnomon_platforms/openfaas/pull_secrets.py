"""Which of a function's secrets are logins to a registry.

OpenFaaS's users name them in `secrets:` like any other (`kubectl create secret docker-registry`), and the type of the Secret says
that it is for the kubelet, which pulls the image with it. The function does not get to see it.
"""

from __future__ import annotations

from dataclasses import replace

from gnomon_core.functions import FunctionSpec
from gnomon_platforms.kubernetes.objects.pod_template import PodOptions
from gnomon_platforms.kubernetes.resources import SECRETS
from gnomon_platforms.kubernetes.writes import Target, Writer

LOGINS = frozenset({"kubernetes.io/dockerconfigjson", "kubernetes.io/dockercfg"})


async def with_pull_secrets(writer: Writer, spec: FunctionSpec, options: PodOptions) -> PodOptions:
    """What the operator says of pods, with the logins that this function names. One that is not there is none.

    Raises:
        GnomonError: the API server cannot be asked.

    """
    found = []
    for name in spec.secrets:
        seen = await writer.settle(Target(SECRETS, spec.key.namespace, name), lambda _: None, f"read the secret {name}")
        if seen is not None and seen.get("type") in LOGINS and name not in options.pull_secrets:
            found.append(name)
    return replace(options, pull_secrets=(*options.pull_secrets, *found))
