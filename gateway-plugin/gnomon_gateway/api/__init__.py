"""OpenFaaS's provider and gateway routes, so that faas-cli, the SDKs and the certifier work against Gnomon unchanged.

`invocation` serves `/function/…` without ASGI. The control routes have one module per resource, which returns its handlers by
path and method; `application` combines them behind the guard (`access`).
"""
