"""The client: applications over HTTP, by the standard library alone.

Inputs are nested lists or numpy arrays of samples, or the bytes of an image. Arrays, and lists of arrays, are sent in binary and
answered as arrays; nested lists are sent as JSON and answered as nested lists. One client may be used by several threads and by
forks of the process, each with a connection of its own.
"""

from __future__ import annotations

import base64
import http.client
import json
import math
import numbers
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeAlias, cast
from urllib.parse import quote, unquote, urlsplit

from gnomon_core.applications import architecture_of
from gnomon_core.errors import GnomonError, bad_request
from gnomon_core.signature import NUMPY_TYPES

DEFAULT_GATEWAY = "http://127.0.0.1:8080"
URL_VARIABLE = "OPENFAAS_URL"
TIMEOUT_S = 60.0
MEASURED_WITHIN_S = 300.0
"""The longest wait of `register_model` for the measurement of a model's variants."""
VALIDATED_AT_ONCE = 8
"""Samples of the validation set in one request: as many as a gateway takes of any model, however large its inputs are."""
_EVERY_S = 0.1
_HEADER_LENGTH = "Inference-Header-Content-Length"

Inputs: TypeAlias = "bytes | Sequence[Any] | Mapping[str, Any] | Any"
"""An image's bytes, samples of the only input, or samples by the name of the input."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A registered model. `accuracy` is None while unknown."""

    model: str
    accuracy: float | None


@dataclass(frozen=True, slots=True)
class VariantInfo:
    """A way to run a registered model. The numbers are None while it is measured; `state` says so."""

    id: str
    model: str
    engine: str
    precision: str
    cores: int
    state: str
    accuracy: float | None
    latency_ms: Mapping[int, float] | None
    load_ms: float | None
    cost_per_s: float | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ApplicationInfo:
    """An application: its registered models, and the variants that may answer its queries."""

    name: str
    endpoint: str | None
    models: tuple[ModelInfo, ...]
    variants: tuple[VariantInfo, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a query: the outputs by name, which variant gave them, and whether it is the nearest one only.

    `degraded_accuracy` is the accuracy of the variant where it is less than the wished one; None where it is not.

    The outputs of an image are what the model's post-processing makes of them, under the name "".
    """

    outputs: Mapping[str, Any]
    variant: str
    nearest: bool = False
    degraded_accuracy: float | None = None

    @property
    def output(self) -> Any:
        """The first output."""
        return next(iter(self.outputs.values()))


class UnsatisfiedError(GnomonError):
    """The error of a query that no variant satisfies. `nearest` is the id of the nearest variant."""

    nearest = ""


class Client:
    """A client of one gateway. `gateway` may hold a login, as in http://admin:secret@127.0.0.1:8080."""

    def __init__(self, gateway: str = "", *, timeout_s: float = TIMEOUT_S) -> None:
        address = (gateway or os.environ.get(URL_VARIABLE, "") or DEFAULT_GATEWAY).rstrip("/")
        parts = urlsplit(address if "://" in address else f"http://{address}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise bad_request("invalid_gateway", f"{address[:200]!r} is no address of a gateway.", "Write http://HOST:PORT.")
        self._host, self._port, self._secure, self._path = parts.hostname, parts.port, parts.scheme == "https", parts.path
        self._timeout_s = timeout_s
        self._headers: dict[str, str] = {"User-Agent": "gnomon-client"}
        if parts.username is not None:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
            self._headers["Authorization"] = f"Basic {base64.b64encode(login).decode()}"
        self._local = threading.local()
        self._inputs: dict[str, list[dict[str, Any]]] = {}

    def register_model(
        self,
        model: str,
        *,
        app: str,
        accuracy: float | None = None,
        validation: tuple[Inputs, Sequence[int]] | None = None,
        wait: bool = True,
    ) -> ModelInfo:
        """Register a model of the repository, `name` or `name@version`, for an application.

        `accuracy` is the share of right answers, from 0 to 1. With `validation`, samples and the right class of each, it is
        measured of every variant: the class that a variant answers is the place of the largest value of its first output, or
        of the second one behind a label. `wait` returns once the variants are measured, so that queries can get them; a
        validation always waits. A new model that cannot be validated does not stay registered.

        Raises:
            GnomonError: the gateway's refusal; 400 `invalid_validation`; 504 `not_measured` where the variants are not measured
                in time.

        """
        if accuracy is not None and validation is not None:
            raise bad_request("two_accuracies", "Both accuracy and validation are given.", "Give one of them.")
        if validation is None:
            registered = self._register(app, model, {} if accuracy is None else {"accuracy": _plain("accuracy", accuracy)})
            if wait:
                self._wait_measured(app, registered.model)
            return registered
        samples, labels = _validation(validation)
        before = self._registered(app)
        registered = self._register(app, model, {})
        try:
            self._wait_measured(app, registered.model)
            return self._validate(app, registered, samples, labels)
        except BaseException:
            if registered.model not in before:
                self._call("DELETE", _model_path(app, registered.model), b"", {})
            raise

    def _registered(self, app: str) -> set[str]:
        """The models of an application; none where there is no such application."""
        try:
            return {one.model for one in self.model_info(app).models}
        except GnomonError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return set()

    def _validate(self, app: str, registered: ModelInfo, samples: Any, labels: Sequence[int]) -> ModelInfo:
        """Measure the accuracy of the model's variants."""
        found = {
            variant.id: self._accuracy(app, variant.id, samples, labels)
            for variant in self.model_info(app).variants
            if variant.model == registered.model and variant.latency_ms is not None
        }
        return self._register(app, registered.model, {"accuracy": max(found.values()), "variants": found})

    def model_info(self, app: str) -> ApplicationInfo:
        """The registered models and variants of an application.

        Raises:
            GnomonError: 404 `application_not_found`.

        """
        document = self._json("GET", f"/system/applications/{quote(app, safe='')}")
        models = sorted(document["models"], key=lambda model: model["registered_at"])
        return ApplicationInfo(
            document["name"],
            document["endpoint"],
            tuple(ModelInfo(model["model"], model["accuracy"]) for model in models),
            tuple(_variant(variant) for variant in document["variants"]),
        )

    def inference_query(
        self,
        inputs: Inputs,
        *,
        app: str,
        latency_ms: float | None = None,
        accuracy: float | None = None,
        accuracy_floor: float | None = None,
        cost: float | None = None,
        model: str | None = None,
        variant: str | None = None,
        nearest: bool = False,
    ) -> Answer:
        """Query an application: the variant that answers takes at most `latency_ms` and `cost`, and has at least `accuracy`.

        `model` or `variant` select the model or variant by name. With `accuracy_floor` a variant of less than `accuracy` answers,
        down to the floor, where no other one answers in time. With `nearest` the nearest variant answers if none satisfies the
        query.

        Raises:
            UnsatisfiedError: no variant satisfies the query.
            GnomonError: another refusal of the gateway.

        """
        constraints = {
            "latency_ms": latency_ms,
            "accuracy": accuracy,
            "accuracy_floor": accuracy_floor,
            "cost": cost,
            "model": model,
            "variant": variant,
        }
        parameters: dict[str, Any] = {name: _plain(name, value) for name, value in constraints.items() if value is not None}
        if nearest:
            parameters["nearest"] = "serve"
        if isinstance(inputs, bytes):
            headers = {f"X-Gnomon-{name.replace('_', '-').title()}": _line(name, value) for name, value in parameters.items()}
            answer = self._call("POST", f"/function/{quote(app, safe='')}", inputs, headers)
            return Answer({"": _image_answer(answer)}, *_chosen(answer))
        return self._infer(app, inputs, parameters)

    def _infer(self, app: str, inputs: Sequence[Any] | Mapping[str, Any], parameters: dict[str, Any]) -> Answer:
        named = inputs if isinstance(inputs, Mapping) else {"": inputs}
        specs = self._wanted(app)
        if not specs:
            # The application has no models, or they take different tensors: the gateway says which.
            self._call("POST", f"/v2/models/{quote(app, safe='')}/infer", b"{}", {"Content-Type": "application/json"})
        if not isinstance(inputs, Mapping) and len(specs) != 1:
            names = ", ".join(tensor["name"] for tensor in specs)
            raise bad_request("invalid_inputs", f"The models of {app} have the inputs {names}.", "Give them by name.")
        tensors: list[dict[str, Any]] = []
        binary: list[bytes] = []
        for spec in specs:
            samples = named[spec["name"]] if spec["name"] in named else named.get("")
            if samples is None:
                raise bad_request("invalid_inputs", f"The input {spec['name']} is missing.", "Give all inputs by name.")
            tensors.append(_tensor(spec, samples, binary))
        document = {"inputs": tensors, "parameters": parameters | ({"binary_data_output": True} if binary else {})}
        head = json.dumps(document).encode()
        headers = {"Content-Type": "application/octet-stream" if binary else "application/json"}
        if binary:
            headers[_HEADER_LENGTH] = str(len(head))
        try:
            answer = self._call("POST", f"/v2/models/{quote(app, safe='')}/infer", head + b"".join(binary), headers)
        except GnomonError as error:
            if error.status in (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND):
                self._inputs.pop(app, None)  # the application may have models with other inputs by now
            raise
        return Answer(_outputs(answer), *_chosen(answer))

    def _accuracy(self, app: str, variant: str, samples: Any, labels: Sequence[int]) -> float:
        """The share of the validation set that a variant answers right."""
        right = 0
        for first in range(0, len(labels), VALIDATED_AT_ONCE):
            last = first + VALIDATED_AT_ONCE
            answer = self.inference_query(samples[first:last], app=app, variant=variant)
            right += sum(_largest(row) == label for row, label in zip(_scores(answer), labels[first:last], strict=True))
        return right / len(labels)

    def _register(self, app: str, model: str, document: Mapping[str, Any]) -> ModelInfo:
        self._inputs.pop(app, None)
        found = self._json("PUT", _model_path(app, model), document)
        return ModelInfo(found["model"], found["accuracy"])

    def _wait_measured(self, app: str, model: str) -> None:
        end_s = time.monotonic() + MEASURED_WITHIN_S
        while True:
            variants = [variant for variant in self.model_info(app).variants if variant.model == model]
            if variants and all(variant.latency_ms is not None for variant in variants):
                return
            failed = next((variant for variant in variants if variant.state == "failed"), None)
            if failed is not None:
                raise GnomonError(502, "not_measured", f"{failed.id} cannot be measured: {failed.problem}")
            if time.monotonic() > end_s:
                text = f"The variants of {architecture_of(model)} were not measured within {MEASURED_WITHIN_S:.0f} s."
                raise GnomonError(504, "not_measured", text, f"Look at `gnomon app describe {app}`.")
            time.sleep(_EVERY_S)

    def _wanted(self, app: str) -> list[dict[str, Any]]:
        """The inputs of an application, asked for once."""
        found = self._inputs.get(app)
        if not found:
            found = self._inputs[app] = self._json("GET", f"/v2/models/{quote(app, safe='')}")["inputs"]
        return found

    def _json(self, method: str, path: str, document: Mapping[str, Any] | None = None) -> Any:
        body = b"" if document is None else json.dumps(document).encode()
        return json.loads(self._call(method, path, body, {"Content-Type": "application/json"}).body)

    def _call(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> _Response:
        try:
            answer = self._send(method, path, body, headers)
        except (OSError, http.client.HTTPException) as error:
            self._close()
            address = f"{self._host}:{self._port}" if self._port else self._host
            hint = f"Start it with `gnomon serve`, or name another one by {URL_VARIABLE}."
            raise GnomonError(503, "gateway_unreachable", f"{address} cannot be reached: {error}.", hint) from error
        except BaseException:
            self._close()  # interrupted: the answer that is still to come must not be that of the next request
            raise
        if not HTTPStatus.OK <= answer.status < HTTPStatus.MULTIPLE_CHOICES:
            raise _refusal(answer)
        return answer

    def _send(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> _Response:
        """Send a request, once more on a new connection where the gateway has closed the one that was kept."""
        open_connection: _ThreadConnection | None = getattr(self._local, "connection", None)
        if open_connection is not None and open_connection.process != os.getpid():
            open_connection = None  # this process is a fork: the connection's answers are those of the process that has opened it
        connection = open_connection.connection if open_connection is not None else self._connect()
        try:
            connection.request(method, self._path + path, body, {**self._headers, **headers})
            answer = connection.getresponse()
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
            if open_connection is None:
                raise
            self._close()
            return self._send(method, path, body, headers)
        return _Response(answer.status, answer.headers, answer.read())

    def _connect(self) -> http.client.HTTPConnection:
        make = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection: http.client.HTTPConnection = make(self._host, self._port, timeout=self._timeout_s)
        self._local.connection = _ThreadConnection(connection)
        return connection

    def _close(self) -> None:
        self._local.connection = None


class _ThreadConnection:
    """The connection of one thread, which is closed with the thread or the client."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self.connection = connection
        self.process = os.getpid()

    def __del__(self) -> None:
        self.connection.close()


def register_model(
    model: str,
    *,
    app: str,
    accuracy: float | None = None,
    validation: tuple[Inputs, Sequence[int]] | None = None,
    wait: bool = True,
) -> ModelInfo:
    """Register a model at the gateway that OPENFAAS_URL names, as `Client.register_model` does."""
    return _default().register_model(model, app=app, accuracy=accuracy, validation=validation, wait=wait)


def model_info(app: str) -> ApplicationInfo:
    """Return an application's models from the gateway that OPENFAAS_URL names, as `Client.model_info` does."""
    return _default().model_info(app)


def inference_query(
    inputs: Inputs,
    *,
    app: str,
    latency_ms: float | None = None,
    accuracy: float | None = None,
    accuracy_floor: float | None = None,
    cost: float | None = None,
    model: str | None = None,
    variant: str | None = None,
    nearest: bool = False,
) -> Answer:
    """Query the gateway that OPENFAAS_URL names, as `Client.inference_query` does."""
    return _default().inference_query(
        inputs,
        app=app,
        latency_ms=latency_ms,
        accuracy=accuracy,
        accuracy_floor=accuracy_floor,
        cost=cost,
        model=model,
        variant=variant,
        nearest=nearest,
    )


_clients: dict[str, Client] = {}


def _default() -> Client:
    """The client of the gateway that the environment names now."""
    address = os.environ.get(URL_VARIABLE, "")
    if address not in _clients:
        _clients[address] = Client(address)
    return _clients[address]


@dataclass(frozen=True, slots=True)
class _Response:
    status: int
    headers: http.client.HTTPMessage
    body: bytes


def _chosen(answer: _Response) -> tuple[str, bool, float | None]:
    degraded = answer.headers.get("X-Gnomon-Degraded-Accuracy")
    variant, nearest = answer.headers.get("X-Gnomon-Variant", ""), "X-Gnomon-Nearest" in answer.headers
    return variant, nearest, None if degraded is None else float(degraded)


def _refusal(answer: _Response) -> GnomonError:
    """The gateway's error, from its own document or from that of the open inference protocol."""
    text = answer.body.decode("utf-8", "replace")
    try:
        error = json.loads(text)["error"]
    except (ValueError, KeyError, TypeError):
        error = text[:1000]
    if isinstance(error, dict):
        code, message, hint = str(error.get("code", "")), str(error.get("message", "")), str(error.get("hint", ""))
    else:
        code, message, hint = f"http_{answer.status}", str(error), ""
    nearest = answer.headers.get("X-Gnomon-Nearest")
    if answer.status == HTTPStatus.UNPROCESSABLE_ENTITY and nearest:
        unsatisfied = UnsatisfiedError(answer.status, "no_variant_satisfies", message, hint)
        unsatisfied.nearest = nearest
        return unsatisfied
    return GnomonError(answer.status, code, message, hint)


def _variant(document: Mapping[str, Any]) -> VariantInfo:
    latency = document.get("latency_ms")
    return VariantInfo(
        document["id"],
        document["model"],
        document["engine"],
        document["precision"],
        document["cores"],
        document["state"],
        document.get("accuracy"),
        None if latency is None else {int(size): float(milliseconds) for size, milliseconds in latency.items()},
        document.get("load_ms"),
        document.get("cost_per_s"),
        document.get("problem", ""),
    )


def _model_path(app: str, model: str) -> str:
    return f"/system/applications/{quote(app, safe='')}/models/{quote(model, safe='@')}"


def _plain(name: str, value: Any) -> Any:
    """A constraint or an accuracy as JSON has it, so that numbers of numpy are sent too; the gateway checks its meaning."""
    if isinstance(value, str | int | float):
        return value
    if isinstance(value, numbers.Real):
        return float(value)
    raise bad_request("invalid_constraint", f"{name} is of type {type(value).__name__}.", "Give a number, or the name as a text.")


def _line(name: str, value: Any) -> str:
    """A constraint as the text of a header."""
    text = str(value)
    if text.isascii() and text.isprintable():
        return text
    raise bad_request("invalid_constraint", f"{name} is {text[:50]!r}.", "Names are printable ASCII characters.")


def _validation(validation: Any) -> tuple[Any, Sequence[int]]:
    """The samples of a validation set, and the class of each.

    Raises:
        GnomonError: 400 `invalid_validation`.

    """
    if not isinstance(validation, tuple) or len(validation) != 2 or not all(hasattr(part, "__len__") for part in validation):  # noqa: PLR2004
        raise bad_request("invalid_validation", "validation is not a pair.", "Give (samples, classes).")
    samples, labels = validation
    if not len(labels) or len(samples) != len(labels):
        hint = "Give one class for each sample, and at least one."
        raise bad_request("invalid_validation", f"{len(samples)} samples have {len(labels)} classes.", hint)
    wrong = next((one for one in labels if not isinstance(one, numbers.Integral) or one < 0), None)
    if wrong is not None:
        hint = "A class is its place in the model's output, a whole number from 0."
        raise bad_request("invalid_validation", f"{str(wrong)[:50]!r} is no class.", hint)
    return samples, labels


def _tensor(spec: Mapping[str, Any], samples: Any, binary: list[bytes]) -> dict[str, Any]:
    """An input of an infer request; that of an array is appended to `binary`."""
    tensor: dict[str, Any] = {"name": spec["name"], "datatype": spec["datatype"]}
    dtype = NUMPY_TYPES.get(spec["datatype"])
    shape: list[int] = []
    inner = samples
    while isinstance(inner, Sequence) and not isinstance(inner, str | bytes):
        shape.append(len(inner))
        inner = inner[0] if inner else None
    if not hasattr(inner, "astype"):
        return tensor | {"shape": shape, "data": samples}
    import numpy as np  # noqa: PLC0415 - whoever sends arrays, or lists of them, has it

    try:
        given = np.asarray(samples)
        if dtype is None:  # numpy has no BF16
            return tensor | {"shape": list(given.shape), "data": given.tolist()}
        with np.errstate(invalid="ignore"):
            values = given.astype(dtype)
    except (TypeError, ValueError) as error:
        raise bad_request("invalid_inputs", f"{spec['name']}: {error}.", f"Give numbers, as {spec['datatype']}.") from None
    # numpy wraps a whole number that is out of range and cuts a fraction off.
    if values.dtype.kind != "f" and (values != given).any():
        raise bad_request("invalid_inputs", f"{spec['name']}: the values do not fit {spec['datatype']}.", "Round or scale them.")
    data = values.tobytes()
    binary.append(data)
    return tensor | {"shape": list(values.shape), "parameters": {"binary_data_size": len(data)}}


def _outputs(answer: _Response) -> dict[str, Any]:
    length = answer.headers.get(_HEADER_LENGTH)
    head = answer.body if length is None else answer.body[: int(length)]
    offset = len(head)
    outputs: dict[str, Any] = {}
    for output in json.loads(head)["outputs"]:
        size = output.get("parameters", {}).get("binary_data_size")
        if size is None:
            outputs[output["name"]] = _nested(output["data"], output["shape"])
            continue
        import numpy as np  # noqa: PLC0415 - optional: callers that send arrays have it

        raw, dtype = answer.body[offset : offset + size], NUMPY_TYPES.get(output["datatype"])
        # BF16, which numpy does not have, is the upper half of FP32.
        data = np.frombuffer(raw, dtype) if dtype else (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4")
        outputs[output["name"]] = data.reshape(output["shape"])
        offset += size
    return outputs


def _nested(data: list[Any], shape: Sequence[int]) -> list[Any]:
    """Flat numbers as nested lists of this shape."""
    for size in reversed(shape[1:]):
        data = [data[first : first + size] for first in range(0, len(data), size)] if size else []
    return data


def _image_answer(answer: _Response) -> Any:
    """The model's own answer to an image: its JSON document, or its bytes."""
    if "json" in answer.headers.get("Content-Type", ""):
        return json.loads(answer.body)
    return answer.body


def _scores(answer: Answer) -> Sequence[Any]:
    """The output with the scores of classes: the first one, or the second one behind a label.

    Raises:
        GnomonError: 400 `invalid_validation` for a model that gives one number for each sample.

    """
    for output in list(answer.outputs.values())[:2]:
        if len(_flat(output[0])) > 1:
            return cast("Sequence[Any]", output)
    raise bad_request(
        "invalid_validation", f"{answer.variant} gives one number for each sample, which is no class.", "State its accuracy."
    )


def _largest(row: Any) -> int:
    """The place of the largest number; of nested rows by their flat order."""
    flat = [float(value) for value in _flat(row)]
    return max(range(len(flat)), key=flat.__getitem__) if flat and not math.isnan(flat[0]) else -1


def _flat(row: Any) -> list[Any]:
    values = row.tolist() if hasattr(row, "tolist") else row
    return [inner for value in values for inner in _flat(value)] if isinstance(values, list) else [values]
