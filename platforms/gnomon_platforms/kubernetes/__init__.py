"""What every platform on Kubernetes shares: manifests, what is seen, what is written, and who may write.

    objects    FunctionSpec ▶ manifests, and cluster objects ▶ what they mean: pure functions of JSON documents
    api        one request to the API server, through the official client
    informer   a kind of object as it is now, by list and watch
    writes     changes that carry what they were decided from
    leader     which process may write, by a Lease

Documents are plain JSON as the API server speaks it, not the client's generated models: they cost a tenth of the memory, and one
version of the client then serves every version of the server.
"""
