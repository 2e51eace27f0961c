"""Models before they are served: captured as layer programs, kept in a repository.

`repository` needs no torch; `catalog` and `extractor` do, and are imported where a model is captured.
"""
