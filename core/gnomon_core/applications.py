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
from gnomon_core.functions import FunctionKey
from gnomon_core.settings import Settings

WHERE_SERVED = "Applications are served by `gnomon serve` on one machine and on Lambda."


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
            f"annotation gnomon/model names the application {settings.application[:100]!r}, and this platform has none.",
            f"{WHERE_SERVED} Name a model here.",
        )
