"""A foreign provider of OpenFaaS behind us: it keeps functions and replicas, we buffer and dispatch.

    api        its REST interface, errors, logs, and the operator's options
    catalog    its functions and replicas, polled, and the `FunctionStore` on top
    channel    slots, and how a batch travels: request by request, or as one where the function takes batches
    platform   the implementation of `Platform`

docs/decisions/0038-adopting-an-openfaas-installation.md says why.
"""
