"""Measures a model on this machine: the Profiler.

    profiling   the whole run: which cells are missing, measure them, store the profile
    cells       the cells, each small enough to be measured again, and lines fitted through measured points
    session     the process that measures (gnomon_runtime.measuring), noisy cells again; a journal
    assembly    finished cells as a gnomon_core.profiles.ModelProfile with its provenance, and back
    store       profiles by model and machine, under a model repository

This package imports no torch: another process computes, as instances do.
"""
