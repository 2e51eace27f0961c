"""The scaling policies, one file each.

Each says in its first lines which system or paper it follows and where it had to decide for itself. They are pure: an observation
and a memory in, a wish out. Their names, and how each is wrapped, are in `gnomon_autoscaler.registry`.
"""
