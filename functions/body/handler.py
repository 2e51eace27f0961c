"""The Body: serves a whole model of the repository, in an image.

`GNOMON_MODEL` names it, `resnet50` or `resnet50@1`; `GNOMON_MODELS` is the repository: a folder, a volume at /models unless
said otherwise, or `s3://bucket/prefix`, from which the model is fetched into /tmp. `GNOMON_WEIGHTS=private` gives the instance
its own copy of the weights. `GNOMON_ENGINE=openvino` or `onnxruntime` runs the model on that engine where the image and the
entry have it, else its layer program does. With the volume of the node's coordinator at /run/gnomon it can have Shadows;
without one it says so and works alone. On one machine the local platform serves a function with the annotation `gnomon/model`
directly, from a zygote that has torch imported, and this file is not run.
"""

from __future__ import annotations

from dataclasses import replace

from gnomon_core.engines import PROGRAM, engine_of, engine_options
from gnomon_core.errors import bad_request
from gnomon_core.launch import Launch
from gnomon_profiler.places import repository_of_instance
from gnomon_runtime.application import Application
from gnomon_runtime.body import ModelApplication


def gnomon_application(launch: Launch) -> Application:
    """The application that answers the batches of this instance."""
    reference = launch.environment.get("GNOMON_MODEL")
    if not reference:
        raise bad_request("model_missing", "No model is named.", "Set the function's variable GNOMON_MODEL.")
    entry = repository_of_instance(launch.environment).get(reference)
    options = {
        "program": str(entry.program),
        "weights": str(entry.weights),
        **({} if entry.layers is None else {"layers": str(entry.layers)}),
        "sha256": dict(entry.sha256),
        "weight_mode": launch.environment.get("GNOMON_WEIGHTS") or "shared",
        **engine_options(engine_of(entry.files, launch.environment.get("GNOMON_ENGINE") or PROGRAM)),
    }
    return ModelApplication(replace(launch, kind="model", options=options))
