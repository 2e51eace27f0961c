"""OpenFaaS's provider and gateway routes, so that faas-cli, the SDKs and the certifier work against Gnomon unchanged.

One module per resource. Each returns its handlers by path and method; `application` combines them behind authentication.
"""
