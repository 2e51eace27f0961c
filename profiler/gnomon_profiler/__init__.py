"""Models before they are served: captured as layer programs, kept in a repository.

    from gnomon_profiler import add_model
    add_model(module, example, "flowers", ".gnomon/models")

`repository` needs no torch; `catalog` and `extractor` do, and are imported where a model is captured.
"""

from gnomon_profiler.add import add_model

__all__ = ["add_model"]
