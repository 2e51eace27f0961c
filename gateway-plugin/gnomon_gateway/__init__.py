"""The gateway: admits requests, queues and batches them, sends them to instances, and speaks OpenFaaS's API and the V2 protocol.

A request passes through `http` (connections and exchanges), `api` or `v2` (OpenFaaS's routes, the V2 protocol), `queueing`
(admission and lanes), `scheduling` (when a batch leaves, for which instance) and `dispatch` (batches in flight). `functions` owns
the deployed functions and their instances, `asynchronous` the calls that are answered 202, and `replicas` shares functions among
several gateways.
"""
