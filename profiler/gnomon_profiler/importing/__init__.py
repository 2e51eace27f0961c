"""Models in the formats of other tools: ONNX files, folders of Hugging Face transformers, scikit-learn estimators.

    source on disk or a hub ─▶ checked ─▶ a torch module with an example ─▶ captured as any module ─▶ compared by row

`sources` says what a path is and imports nothing heavy. The other modules need torch and the library of their format, which is an
optional extra; they run in the process that captures (`gnomon_profiler.capturing`). No format here executes code from the source:
pickles, Python files in a model's folder and custom operators are refused.
"""
