"""Platforms that run instances: the only code that talks to one. `local` starts processes on this machine.

Modules beside the folders are what several platforms share, such as what an instance takes of its node (`claims`), how an
image is served without a container (`images`) and what was measured of a model (`profile_files`).
"""
