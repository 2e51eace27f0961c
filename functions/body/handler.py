"""The Body: serves a whole model of the repository, in an image.

`GNOMON_MODEL` names it, `resnet50` or `resnet50@1`; `GNOMON_MODELS` is the repository: a folder, a volume at /models unless
said otherwise, or `s3://bucket/prefix`, from which the model is fetched into /tmp. `GNOMON_WEIGHTS=private` gives the instance
its own copy of the weights. `GNOMON_ENGINE=openvino` or `onnxruntime` runs the model on that engine where the image and the
entry have it, else its layer program does; `GNOMON_PRECISION=bf16` or `int8` narrows it, and `auto` does with
`GNOMON_ACCURACY_FLOOR=0.75`. With the volume of the node's coordinator at /run/gnomon it can have Shadows; without one it says so
and works alone. Shadows on nodes compute the layer program, so a Body in another precision than fp32 has none. On one machine the
local platform serves a function with the annotation `gnomon/model` directly, from a zygote that has torch
imported, and this file is not run.
"""

from __future__ import annotations

from dataclasses import replace

from gnomon_core.engines import FP32, engine_of_environment, engine_options
from gnomon_core.errors import bad_request
from gnomon_core.launch import Launch
from gnomon_profiler.repository import repository_of_instance
from gnomon_runtime.application import Application
from gnomon_runtime.body import ModelApplication


def gnomon_application(launch: Launch) -> Application:
    """The application that answers the batches of this instance."""
    reference = launch.environment.get("GNOMON_MODEL")
    if not reference:
        raise bad_request("model_missing", "No model is named.", "Set the function's variable GNOMON_MODEL.")
    entry = repository_of_instance(launch.environment).get(reference)
    engine = engine_of_environment(entry.files, launch.environment)
    options = {
        "program": str(entry.program),
        "weights": str(entry.weights),
        **({"layers": str(entry.layers)} if entry.layers is not None and engine.precision == FP32 else {}),
        "sha256": dict(entry.sha256),
        "weight_mode": launch.environment.get("GNOMON_WEIGHTS") or "shared",
        **engine_options(engine),
    }
    return ModelApplication(replace(launch, kind="model", options=options))
