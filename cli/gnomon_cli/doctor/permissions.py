"""May an account do what it has to? Every rule of its roles is asked for, one by one, of whoever enforces them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gnomon_cli.doctor.findings import Level
from gnomon_cli.doctor.looking import Cluster
from gnomon_platforms.kubernetes.client import Document
from gnomon_platforms.kubernetes.resources import Permission, Scope

SHOWN = 4
"""How many that are missing are named; the others are counted."""


@dataclass(frozen=True, slots=True)
class Asker:
    """Who is asked for: a service account (`namespace`, `name`), or whoever the kubeconfig says, where `account` is None."""

    account: tuple[str, str] | None = None

    @property
    def kind(self) -> str:
        return "SelfSubjectAccessReview" if self.account is None else "SubjectAccessReview"

    @property
    def subject(self) -> Document:
        """What the review says of whom it is for."""
        if self.account is None:
            return {}
        namespace, name = self.account
        groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
        return {"user": f"system:serviceaccount:{namespace}:{name}", "groups": groups}

    def __str__(self) -> str:
        return "you" if self.account is None else ":".join(self.account)


def permissions(
    cluster: Cluster, wanted: Iterable[Permission], namespaces: dict[Scope, str | None], asker: Asker, install: str
) -> tuple[Level, str, str]:
    """Ask for each verb of each rule in the namespace of its scope. `install` is the command that gives them.

    Raises:
        Refused: reviews may not be asked for; everybody may ask for their own.
        Unreachable: the API server does not answer.

    """
    asked, missing = 0, []
    for permission in wanted:
        resource, _, subresource = permission.resource.partition("/")
        for verb in permission.verbs:
            attributes = {"group": permission.group, "resource": resource, "subresource": subresource, "verb": verb}
            attributes |= {"name": permission.only} if permission.only else {}
            namespace = namespaces[permission.scope]
            spec = {**asker.subject, "resourceAttributes": {**attributes, **({"namespace": namespace} if namespace else {})}}
            asked += 1
            if not cluster.review(asker.kind, spec):
                where = f" in {namespace}" if namespace else ""
                missing.append(f"{verb} {permission.name}{where} (to {permission.why})")
    if not missing:
        return Level.OK, f"All {asked} that are needed are given to {asker}.", ""
    more = f", and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
    return (
        Level.FAIL,
        f"{len(missing)} of {asked} are not given to {asker}: {', '.join(missing[:SHOWN])}{more}.",
        install,
    )
