"""OpenFaaS's provider and gateway routes, so that faas-cli, the SDKs and the certifier work against Gnomon unchanged.

One module per resource; each offers its handlers by path and method, and `application` puts them together behind the guard.
"""
