"""The gateway: admits requests, queues and batches them, sends them to instances, and speaks OpenFaaS's API and the V2 protocol.

http          connections and exchanges
api, v2       OpenFaaS's routes (`api.invocation` is the application), and the open inference protocol
functions     deployed functions: `manager` has the API's operations, `function_runtime` one function's request path
queueing      requests in lanes (`queue`), and the rule that refuses those that would be late (`admission`)
scheduling    when a batch leaves, for which instance
dispatch      batches in flight, as a state machine without clocks and sockets; the instances and their latencies
asynchronous  calls that are answered 202 and executed later
replicas      several gateways that share the functions
metrics       counters and the Prometheus page
store         the embedded store of functions, secrets and namespaces
"""
