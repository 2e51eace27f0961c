"""The layer-program engine: runs a model that is data.

`load_program` checks a program against the allow-list and binds its weights; the `Executor` it returns runs batches. Read
`allowlist` for what may run, `sizes` for how large it may get, `executor` for how it runs, in place where it can.
"""

from gnomon_runtime.engine.executor import Executor, LoadedProgram, load_program
from gnomon_runtime.engine.torch_support import Limits

__all__ = ["Executor", "Limits", "LoadedProgram", "load_program"]
