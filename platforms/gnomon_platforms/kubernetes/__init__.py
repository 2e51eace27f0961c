"""Code shared by all platforms on Kubernetes: manifests, informers, writes and leader election.

    objects    FunctionSpec ▶ manifests, and cluster objects ▶ facts: pure functions of JSON documents
    client     one request to the API server
    informer   a cache of one kind of object, kept by list and watch
    writes     writes with preconditions: uid and resourceVersion
    lease      leader election with a Lease

Documents are plain JSON as the API server sends it, not the client's generated models: they need a tenth of the memory, and one
version of the client works with every version of the server.
"""
