"""The live system beside the simulator: the same profile, arrivals, policy and settings on both sides.

comparison   decisions second by second, and verdicts: pure
profiling    the handler's profile, measured apart
live         arrivals, and one stretch on a real `gnomon serve`, recorded
page         the figures and the page
"""
