"""A foreign provider of OpenFaaS behind us: it keeps functions and replicas, we buffer and dispatch.

    options    the operator's configuration
    api        its REST interface, and what its refusals mean to our users
    documents  its documents of functions, read as ours
    catalog    its present functions, replicas and namespaces, polled
    store      a `FunctionStore` on top of both
    slots      one instance: the right to have one batch under way at the provider
    channel    how a batch travels: request by request, or as one where the function takes batches
    exchange   one HTTP exchange with a function through the provider, and when it is tried again
    platform   the implementation of `Platform`
    logs       log lines of functions, from the provider

docs/decisions/0038-adopting-an-openfaas-installation.md says why.
"""
