"""The scaling policies, one file each.

Each module's docstring names the system or paper that it follows, and its deviations. They are pure: an observation
and a memory in, a desired count out. Their names, and how each is wrapped, are in `gnomon_autoscaler.registry`.
"""
