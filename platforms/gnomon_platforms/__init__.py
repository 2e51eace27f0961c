"""Platforms that run instances: the only code that talks to one. `local` starts processes on this machine.

Modules beside the folders are shared by several platforms: the lifecycle and claims of instances (`common`), how an
image is served without a container (`images`) and the profiles of models (`profile_files`).
"""
