"""Client of Gnomon's model-less interface: register models for an application, and query by goals instead of by a model.

INFaaS's Figure 2, with a model repository that has `resnet50` and `mobilenet` (`gnomon models add`), and an `image`:

    >>> import gnomon
    >>> _ = gnomon.register_model("resnet50", app="detect-face", accuracy=0.76)
    >>> _ = gnomon.register_model("mobilenet", app="detect-face", accuracy=0.66)
    >>> answer = gnomon.inference_query(image, app="detect-face", latency_ms=2000, accuracy=0.7)
    >>> answer.variant
    'resnet50@1/program/fp32/1'
    >>> [len(scores) for scores in answer.output]
    [4]

A query that nothing satisfies is refused with the nearest variant:

    >>> gnomon.inference_query(image, app="detect-face", accuracy=0.9)
    Traceback (most recent call last):
    gnomon.client.UnsatisfiedError: No variant of the application detect-face satisfies the query. ...
    >>> gnomon.inference_query(image, app="detect-face", accuracy=0.9, nearest=True).variant
    'resnet50@1/program/fp32/1'
    >>> gnomon.inference_query(image, app="detect-face", accuracy=0.9, accuracy_floor=0.7).degraded_accuracy
    0.76
    >>> [model.model for model in gnomon.model_info("detect-face").models]
    ['resnet50@1', 'mobilenet@1']

The functions talk to the gateway that OPENFAAS_URL names, else to http://127.0.0.1:8080; a `Client` talks to another one.
"""

from gnomon.client import (
    Answer,
    ApplicationInfo,
    Client,
    ModelInfo,
    UnsatisfiedError,
    VariantInfo,
    inference_query,
    model_info,
    register_model,
)
from gnomon_core.errors import GnomonError

__all__ = [
    "Answer",
    "ApplicationInfo",
    "Client",
    "GnomonError",
    "ModelInfo",
    "UnsatisfiedError",
    "VariantInfo",
    "inference_query",
    "model_info",
    "register_model",
]
