"""Models before they are served: captured as layer programs, kept in a repository.

    from gnomon_profiler import add_from, add_model
    add_model(module, example, "flowers", ".gnomon/models")
    add_from(".gnomon/models", "trees", "torchvision:resnet50")
    add_from(".gnomon/models", "reviews", "exported.onnx")

`repository` needs no torch; `catalog` and `extractor` do, and are imported where a model is captured.
"""

from gnomon_profiler.add import add_from, add_model, ensure_model

__all__ = ["add_from", "add_model", "ensure_model"]
