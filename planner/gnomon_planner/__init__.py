"""The planner: how requests arrive, how long the buffer makes them wait, and the cheapest plan that meets a percentile.

Pure mathematics on numbers that others measured: no clock, no chance, no loop, no socket, no client, no torch.
"""
