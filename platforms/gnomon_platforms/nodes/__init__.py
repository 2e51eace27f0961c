"""Shadows from the nodes of a cluster, for each platform whose Bodies run in pods: OpenFaaS functions and Knative Revisions.

    coordinators  finds the coordinator pod of each node, and keeps the CPU request of its pool in step with its Shadows
    client        HTTP client of one coordinator (state watch, requests), and the connections to all of them
    shadows       tracks every Shadow: creates, adopts, changes and ends it, and reports that to the platform
    remote_pairs  Shadows on another node than their Body: the order of requests to the two nodes
    node_shadow   one Shadow: its record, the rows that nodes report, the requests that are sent, and what the platform provides
    models        the models of functions, their profiles, and where pools find the files

docs/decisions/0034-body-and-shadow-on-nodes.md says why.
"""
