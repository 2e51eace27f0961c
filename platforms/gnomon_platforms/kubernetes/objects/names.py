"""Labels and annotations: OpenFaaS's, Kubernetes' and Gnomon's.

Gnomon's have the prefix `gnomon/`, which is valid for both kinds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from gnomon_core.errors import bad_request
from gnomon_core.functions import FunctionKey

FUNCTION_LABEL = "faas_function"
"""OpenFaaS's label of everything that belongs to a function; its value is the function's name."""
MANAGED_LABEL = "gnomon/managed"
MANAGED = "true"
VERSION_LABEL = "gnomon/version"
"""Label of pods: the version of the function that they run."""
SECRET_LABEL, SECRET_OWNER = "app.kubernetes.io/managed-by", "openfaas"
"""Label of secrets that were made through OpenFaaS's API: only secrets with this label are listed."""
NAMESPACE_ANNOTATION, NAMESPACE_MARK = "openfaas", "1"
"""Annotation of namespaces that hold functions, besides the default namespace."""

DEPLOYMENT_ANNOTATION = "gnomon/deployment"
"""Annotation of the Deployment: the FunctionDeployment as it was sent, so that the API can return it field by field."""
CREATED_ANNOTATION = "gnomon/created-at"
"""Annotation of the Deployment: the time of the function's first deployment, in seconds since 1970; an update keeps it."""
REMOVED_ANNOTATION = "gnomon/removed"
"""Annotation of a removed function's Deployment, which stays, unlisted, until the requests in flight are answered."""
NAMESPACE_KEYS_ANNOTATION = "gnomon/set"
"""Annotation of namespaces: the labels and annotations that OpenFaaS's API has set. All others are the owner's."""
RESERVED_ANNOTATIONS = frozenset({DEPLOYMENT_ANNOTATION, CREATED_ANNOTATION, REMOVED_ANNOTATION, NAMESPACE_KEYS_ANNOTATION})

FORMER_PLACEMENT_GATE = "gnomon/placement"
"""The scheduling gate in templates of earlier versions of Gnomon, which placed pods themselves: such a template is replaced."""
RESTARTED_ANNOTATION = "kubectl.kubernetes.io/restartedAt"
"""Annotation of a pod template: the time at which a user restarted its pods, by `kubectl rollout restart` or a dashboard."""
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
INSTANCE_ANNOTATION = "gnomon/instance"
"""Annotation of a pod that is bound to an instance: the instance's id."""

PORT, PORT_NAME = 8080, "http"
SECRETS_FOLDER = "/var/openfaas/secrets"
TOKEN_KEY = "gnomon-batch-token"  # noqa: S105 - the name of the file that holds it

MAX_LABEL = 63
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_NAME_PART = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_PREFIX = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


def token_secret(key: FunctionKey) -> str:
    """The Secret with the token of a function's batch route. Function names have no dot, so the name is never a user's secret."""
    return f"{key.name}.gnomon"


def selector(key: FunctionKey) -> dict[str, str]:
    """The labels by which a Deployment and a Service find a function's pods."""
    return {FUNCTION_LABEL: key.name, MANAGED_LABEL: MANAGED}


def is_key(text: str) -> bool:
    """True if Kubernetes takes this as the key of a label or an annotation: `name` or `prefix/name`."""
    prefix, slash, name = text.rpartition("/")
    return bool(_NAME_PART.fullmatch(name)) and (not slash or bool(_PREFIX.fullmatch(prefix)))


def check_name(key: FunctionKey) -> None:
    """Refuse a name that is invalid for a Service, although it is valid for a Deployment.

    Raises:
        GnomonError: 400 `invalid_name`.

    """
    if not key.name[0].isalpha():
        text = f"{key.name!r} begins with a digit; a Service of Kubernetes begins with a letter."
        raise bad_request("invalid_name", text, "Put a letter first.")


def check_labels(labels: Mapping[str, str]) -> None:
    """Refuse labels that the API server would refuse, or that are not the user's to set.

    Raises:
        GnomonError: 400 `invalid_label`, naming it and what is allowed.

    """
    for key, value in labels.items():
        if not is_key(key):
            raise bad_request("invalid_label", f"{key[:100]!r} is not a valid label key.", "Write it as name or prefix/name.")
        if not _LABEL_VALUE.fullmatch(value):
            raise bad_request(
                "invalid_label",
                f"Label {key} has the invalid value {value[:100]!r}.",
                f"A label's value has at most {MAX_LABEL} letters, digits, '-', '_' and '.'; use an annotation for more.",
            )
        if key in (MANAGED_LABEL, VERSION_LABEL):
            raise bad_request("invalid_label", f"Label {key} is reserved for Gnomon.", "Choose another name.")


def check_annotations(annotations: Mapping[str, str]) -> None:
    """Refuse annotations that the API server would refuse, or that are not the user's to set.

    Raises:
        GnomonError: 400 `invalid_annotation`.

    """
    for key in annotations:
        if not is_key(key):
            raise bad_request(
                "invalid_annotation", f"{key[:100]!r} is not a valid annotation key.", "Write it as name or prefix/name."
            )
        if key in RESERVED_ANNOTATIONS or key == DELETION_COST:
            raise bad_request("invalid_annotation", f"Annotation {key} is set by Gnomon.", "Leave it out.")
