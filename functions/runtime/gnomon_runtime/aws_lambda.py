"""The function that runs on AWS Lambda: `gnomon_runtime.aws_lambda.handler`.

    import ─▶ fetch the model's files from S3 to /tmp ─▶ load the application ─▶ Invoke after Invoke: call → frames → reply

A sandbox runs one Invoke at a time and keeps what it has loaded for the next. All that is slow happens when this module is
imported under Lambda, in the phase before the first Invoke, for which Lambda gives a whole core whatever the memory size is.

The variable GNOMON_LAUNCH says what is served: a `Launch` whose options may name files in S3, `{"s3": {NAME: {"bucket", "key",
"sha256"}}}`. They are fetched in parallel parts and hashed before anything reads them. The function's own variables are the
launch's environment.

One bad member never fails its neighbours: the application ensures that. An exception in this module has no answer for any member,
and Lambda reports it as a function error.
"""

from __future__ import annotations

import hashlib
import http.client
import importlib
import json
import os
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gnomon_core.errors import GnomonError
from gnomon_core.lambda_envelope import BODY_VARIABLE, INLINE_BYTES, Call, Reply
from gnomon_core.lambda_pricing import MB_PER_CORE
from gnomon_core.launch import Launch
from gnomon_core.wire import MAX_FRAME_BYTES, Frame, Kind, WireError, decode, encode, stale_result
from gnomon_runtime.application import Application, load_function

TRANSFER_TIMEOUT_S = 60.0


class Sandbox:
    """A loaded function."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._epoch = 0

    def answer(self, document: object, remaining_s: float) -> dict[str, Any]:
        """The reply to a call. `remaining_s` is how long Lambda lets this Invoke run.

        Raises:
            ValueError: the document or its frame is not valid.
            OSError: what was handed over in S3 cannot be read, or the answer cannot be put there.

        """
        call = Call.from_json(document)
        started_s = time.monotonic()
        frame = decode(call.frame if call.frame is not None else _get(str(call.source), remaining_s))
        frames = self._run(frame)
        if len(frames) <= INLINE_BYTES:
            return Reply(frames=frames).to_json()
        if call.reply_to is None:
            return Reply(too_large=len(frames)).to_json()
        _put(call.reply_to, frames, remaining_s - (time.monotonic() - started_s))
        return Reply(stored_bytes=len(frames)).to_json()

    def _run(self, frame: Frame) -> bytes:
        if frame.kind is Kind.HELLO:
            head = json.dumps(self._application.hello()).encode()
            return encode(Frame(Kind.HELLO, frame.batch_id, frame.epoch, head=head))
        if frame.kind is not Kind.BATCH or not frame.members:
            raise WireError(f"a {frame.kind.name} frame of {len(frame.members)} members in an Invoke")
        if frame.epoch < self._epoch:
            return encode(stale_result(frame, self._epoch))
        self._epoch = frame.epoch
        answer = self._application.run(frame)
        return encode(answer) if isinstance(answer, Frame) else b"".join(map(encode, answer))


def launch_from(environment: Mapping[str, str]) -> Launch:
    """The launch of this sandbox, from its environment variable, with the cores of its memory size.

    1,769 MB are one vCPU; a sandbox of 3,008 MB computes with 2 threads.
    """
    launch = Launch.from_json(environment[BODY_VARIABLE])
    memory_mb = int(environment.get("AWS_LAMBDA_FUNCTION_MEMORY_SIZE") or MB_PER_CORE)
    cores = min(-(-memory_mb // MB_PER_CORE), len(os.sched_getaffinity(0)))
    own = {name: value for name, value in environment.items() if name != BODY_VARIABLE}
    return replace(
        launch,
        instance_id=environment.get("AWS_LAMBDA_LOG_STREAM_NAME") or launch.instance_id,
        cores=max(1, cores),
        environment={**own, **launch.environment},
    )


def start(environment: Mapping[str, str]) -> Sandbox:
    """A sandbox that is ready to answer.

    Raises:
        GnomonError: 500 `model_corrupt`: a file is not the one that it should be.
        Exception: whatever the function's own code raises while it is loaded.

    """
    launch = launch_from(environment)
    stored: Mapping[str, Mapping[str, str]] = launch.options.get("s3", {})
    fetched = {name: str(_fetch(name, location)) for name, location in stored.items()}
    root = environment.get("LAMBDA_TASK_ROOT", "")
    folder = {"folder": str(Path(root, launch.options["folder"]))} if "folder" in launch.options else {}
    return Sandbox(load_function(replace(launch, options={**launch.options, **fetched, **folder})))


def handler(event: object, context: Any) -> dict[str, Any]:
    """The handler that Lambda calls."""
    return _sandbox().answer(event, context.get_remaining_time_in_millis() / 1000)


def _fetch(name: str, location: Mapping[str, str]) -> Path:
    """An object of S3 as a file, whole and verified. The name's ending is kept: readers go by it."""
    folder = Path(tempfile.gettempdir(), "gnomon")
    file = folder / f"{location['sha256']}-{name}"
    if file.is_file():
        return file
    folder.mkdir(parents=True, exist_ok=True)
    incoming = file.with_suffix(".incoming")
    client = importlib.import_module("boto3").client("s3")
    client.download_file(location["bucket"], location["key"], str(incoming))
    with incoming.open("rb") as read:
        digest = hashlib.file_digest(read, "sha256").hexdigest()
    if digest != location["sha256"]:
        incoming.unlink()
        raise GnomonError(
            500, "model_corrupt", f"s3://{location['bucket']}/{location['key']} does not have the SHA-256 {location['sha256']}."
        )
    incoming.replace(file)
    return file


def _get(address: str, timeout_s: float) -> bytes:
    with urllib.request.urlopen(_http(address), timeout=min(TRANSFER_TIMEOUT_S, max(1.0, timeout_s))) as answer:  # noqa: S310 - _http looks at the scheme
        data: bytes = answer.read(MAX_FRAME_BYTES + 1)
    return data


def _put(address: str, data: bytes, timeout_s: float) -> None:
    request = urllib.request.Request(_http(address), data, {"Content-Type": "application/octet-stream"}, method="PUT")  # noqa: S310 - _http looks at the scheme
    try:
        urllib.request.urlopen(request, timeout=min(TRANSFER_TIMEOUT_S, max(1.0, timeout_s))).close()  # noqa: S310 - as above
    except (urllib.error.HTTPError, http.client.HTTPException) as error:
        raise OSError(f"S3 did not take an answer of {len(data)} bytes: {error}") from error


def _http(address: str) -> str:
    if not address.startswith(("https://", "http://")):
        raise ValueError("an address that is not HTTP")
    return address


_STARTED: list[Sandbox] = []


def _sandbox() -> Sandbox:
    if not _STARTED:
        _STARTED.append(start(os.environ))
    return _STARTED[0]


if "AWS_LAMBDA_RUNTIME_API" in os.environ and BODY_VARIABLE in os.environ:
    # Run in Lambda's init phase, before the first Invoke, so that a failure is reported as a start failure.
    _sandbox()
