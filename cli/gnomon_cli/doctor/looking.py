"""Reads the cluster for checks. What is not there is None; nothing is written, for of reviews the API server keeps none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gnomon_platforms.kubernetes.client import Api, Document, Refused
from gnomon_platforms.kubernetes.resources import Resource


class Cluster:
    """A cluster as checks see it."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Document | None:
        """What is at this path; None where nothing is.

        Raises:
            Refused: it may not be read.
            Unreachable: the API server does not answer.

        """
        try:
            return self._api.call("GET", path, query=query)
        except Refused as refusal:
            if refusal.missing:
                return None
            raise

    def one(self, resource: Resource, namespace: str | None, name: str) -> Document | None:
        """One object.

        Raises:
            Refused, Unreachable: as `get`.

        """
        return self.get(resource.path(namespace, name))

    def items(self, path: str, query: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
        """A list's objects; none where the kind is not known.

        Raises:
            Refused, Unreachable: as `get`.

        """
        found = self.get(path, query) or {}
        return list(found.get("items") or ())

    def review(self, kind: str, spec: Document) -> bool:
        """Whether the API server would allow it: `kind` is SelfSubjectAccessReview or SubjectAccessReview.

        Raises:
            Refused, Unreachable: as `get`.

        """
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
        answer = self._api.call("POST", f"/apis/authorization.k8s.io/v1/{kind.lower()}s", body=body)
        return bool((answer.get("status") or {}).get("allowed"))
