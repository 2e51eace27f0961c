"""The layer-program engine: runs a model that is data.

`load_program` checks a program against the allow-list and binds its weights; the `Executor` it returns runs batches. Read
`allowlist` for what may run, `sizes` for how large it may get, `executor` for how it runs, `inplace` for what it saves.
"""

from gnomon_runtime.engine.executor import Executor
from gnomon_runtime.engine.limits import Limits
from gnomon_runtime.engine.loading import LoadedProgram, load_program

__all__ = ["Executor", "Limits", "LoadedProgram", "load_program"]
