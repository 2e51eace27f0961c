"""Applications: registered models for one task, of which the platform chooses for each query (INFaaS, section 3.1).

    register_model(model, application, accuracy) ─▶ RegisteredModel ─┬─ MeasuredVariant: latency, loading, accuracy
                                                                     └─ …

An application has the name of the function that is its endpoint. A deployed function becomes an endpoint by the annotation
`gnomon/model: app:NAME`; the name of an application follows the rule for functions, because its members are functions too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gnomon_core.errors import GnomonError, bad_request
from gnomon_core.functions import DEFAULT_NAMESPACE, FunctionKey, FunctionSpec, read_deployment
from gnomon_core.settings import APPLICATION, Settings

WHERE_SERVED = (
    "`gnomon serve` serves applications on one machine and on Lambda; on a cluster, an application is a function's image, built "
    "from the template gnomon-application."
)
POLICY = "infaas"
"""The scaling policy of applications, which decides about all members together. Another one decides about each by itself."""
IMAGE = "gnomon/body"
"""The image of an endpoint that no stack file describes. Its instances run the models of members, not this image's handler."""


@dataclass(frozen=True, slots=True)
class MeasuredVariant:
    """Measurements of a variant on this platform.

    `latency_s` is seconds of a batch by its size, `load_s` seconds from the decision to the first answer, `accuracy` the share of
    the validation set that this variant answers right; None where only the model's is known.
    """

    latency_s: Mapping[int, float]
    load_s: float
    memory_bytes: int = 0
    accuracy: float | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "latency_s": {str(size): seconds for size, seconds in sorted(self.latency_s.items())},
            "load_s": self.load_s,
            "memory_bytes": self.memory_bytes,
            "accuracy": self.accuracy,
        }

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> MeasuredVariant:
        """The measurements in a document.

        Raises:
            KeyError, TypeError, ValueError: the document is not of this form.

        """
        accuracy = document["accuracy"]
        return MeasuredVariant(
            {int(size): float(seconds) for size, seconds in document["latency_s"].items()},
            float(document["load_s"]),
            int(document["memory_bytes"]),
            None if accuracy is None else float(accuracy),
        )


@dataclass(frozen=True, slots=True)
class RegisteredModel:
    """A model of the repository that answers queries of an application.

    `model` is `name@version`, so that a newer version does not replace it unnoticed. `accuracy` is the share of the validation
    set that the model answers right, from 0 to 1; None while unknown, and then no query with an accuracy is answered by it.
    `variants` are the measured ones, by id.
    """

    application: FunctionKey
    model: str
    accuracy: float | None
    registered_at: float
    """Seconds since 1970."""
    variants: Mapping[str, MeasuredVariant] = field(default_factory=dict)

    @property
    def architecture(self) -> str:
        """The name of the model without its version."""
        return architecture_of(self.model)


@dataclass(frozen=True, slots=True)
class DeclaredApplication:
    """An application as its file declares it: the endpoint, and the accuracy of each model, None where it is unknown.

    The models are `name`, of which the newest version is taken, or `name@version`.
    """

    endpoint: FunctionSpec
    models: Mapping[str, float | None]

    @property
    def key(self) -> FunctionKey:
        return self.endpoint.key


def read_application(document: object) -> DeclaredApplication:
    """The application that a file declares.

        name: photos
        models:
          efficientnet-lite0: 0.751
        annotations:                     # the endpoint's; labels likewise
          gnomon/max-batch: "4"

    Raises:
        GnomonError: 400 `invalid_application`, `invalid_accuracy`, or what is wrong with an annotation.

    """
    if not isinstance(document, Mapping):
        raise _invalid("It is not a mapping.")
    for key in document:
        if key not in _KEYS:
            raise _invalid(f"It has the key {str(key)[:50]!r}.")
    name, models = document.get("name"), document.get("models")
    if not isinstance(name, str):
        raise _invalid("It has no name.")
    if not isinstance(models, Mapping) or not models or not all(isinstance(model, str) for model in models):
        raise _invalid("It has no models.")
    annotations, labels = (document.get(key) or {} for key in ("annotations", "labels"))
    if not isinstance(annotations, Mapping) or not isinstance(labels, Mapping):
        raise _invalid("Its annotations or labels are not a mapping.")
    accuracies = {
        model: None if accuracy is None else read_accuracy(accuracy, f"The accuracy of {model[:200]}")
        for model, accuracy in models.items()
    }
    return DeclaredApplication(endpoint_of(FunctionKey(name, DEFAULT_NAMESPACE), annotations, labels), accuracies)


_KEYS = ("name", "models", "annotations", "labels")


def _invalid(wrong: str) -> GnomonError:
    return bad_request(
        "invalid_application",
        f"The file declares no application. {wrong}",
        "It has a name, models with their accuracies, and may have annotations and labels: "
        "{name: photos, models: {efficientnet-lite0: 0.751}}.",
    )


_NOTHING: Mapping[str, str] = {}


def endpoint_of(
    application: FunctionKey, annotations: Mapping[str, str] = _NOTHING, labels: Mapping[str, str] = _NOTHING
) -> FunctionSpec:
    """The endpoint of an application that no stack file describes.

    Raises:
        GnomonError: 400 for a name that no function has, or for an annotation that cannot be read.

    """
    names_it = {"gnomon/model": f"{APPLICATION}{application.name}"}
    document = {
        "service": application.name,
        "namespace": application.namespace,
        "image": IMAGE,
        "annotations": {"gnomon/autoscaler": POLICY, **annotations, **names_it},
        "labels": dict(labels),
    }
    return read_deployment(document)


def variants_to_json(variants: Mapping[str, MeasuredVariant]) -> dict[str, Any]:
    """The measurements of variants as a document."""
    return {name: measured.to_json() for name, measured in variants.items()}


def variants_from_json(document: Mapping[str, Any]) -> dict[str, MeasuredVariant]:
    """The measurements of variants in a document.

    Raises:
        AttributeError, KeyError, TypeError, ValueError: the document is not of this form.

    """
    return {name: MeasuredVariant.from_json(measured) for name, measured in document.items()}


def architecture_of(model: str) -> str:
    """The name of a model, `name` or `name@version`, without its version."""
    return model.partition("@")[0]


def read_accuracy(value: object, name: str = "accuracy") -> float:
    """An accuracy from a document or a header.

    Raises:
        GnomonError: 400 `invalid_accuracy`.

    """
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    if not 0.0 <= number <= 1.0:
        raise invalid_accuracy(name, value)
    return float(number)


def invalid_accuracy(name: str, value: object) -> GnomonError:
    """400 for a value that is no accuracy."""
    allowed = "It is the share of right answers, a number from 0 to 1: 0.7 is 70 %."
    return bad_request("invalid_accuracy", f"{name} is {str(value)[:50]!r}.", allowed)


def refuse_endpoint(settings: Settings) -> None:
    """Refuse the endpoint of an application, on a platform that has none.

    Raises:
        GnomonError: 400 `applications_unavailable`.

    """
    if settings.application is not None:
        raise bad_request(
            "applications_unavailable",
            f"annotation gnomon/model names the application {settings.application[:100]!r}, and the gateway here has none.",
            f"{WHERE_SERVED} Deploy such an image without this annotation (docs/howto/model-less.md).",
        )
