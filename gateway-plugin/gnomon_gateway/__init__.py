"""The gateway: admits requests, queues and batches them, sends them to instances, and speaks OpenFaaS's API and the V2 protocol.

Folders are the stages: `server`, `queueing`, `scheduling`, `dispatch`, `serving`; `lifecycle` owns the functions, `openfaas` is
their API.
"""
