"""Deployed functions: deployment, updates while serving, scaling, removal, and the lifecycle of their instances.

`service` is the interface to the API's routes, and `manager` implements it. `deployments` holds the state of one function,
`instances` carries out scaling decisions, and `function_runtime` drives the request path of one function: queue, scheduling
policy and dispatcher with real instances.
"""
