"""Engines that run a model which is data.

`load_program` checks a layer program against the allow-list and binds its weights; `graphs.load_model` opens the same model as a
graph of ONNX Runtime or OpenVINO where it is to. Both give a `LoadedModel`. Read `allowlist` for what may run, `sizes` for how
large it may get, `executor` for how a program runs, in place where it can, and `graphs` for the other engines.
"""

from gnomon_runtime.engine.executor import Executor
from gnomon_runtime.engine.loaded_model import LoadedModel, LoadedProgram, load_program
from gnomon_runtime.engine.torch_support import Limits

__all__ = ["Executor", "Limits", "LoadedModel", "LoadedProgram", "load_program"]
