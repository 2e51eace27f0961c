"""Measures a model on this machine: the Profiler.

    cells       what there is to measure, each small enough to be done again
    process     the process that measures them (gnomon_runtime.measuring), as a conversation
    journal     each finished cell on disk, so that an interrupted run goes on
    session     cell after cell, noisy ones again, with the time that is left
    fits        lines through measured points
    assembly    the finished cells as a gnomon_core.profiles.ModelProfile, with provenance
    machine     what it was measured on, in words and as a name for files
    store       profiles by model and machine, under a model repository

Nothing here imports torch: another process computes, as instances do.
"""
