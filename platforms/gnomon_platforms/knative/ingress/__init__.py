"""The ingress class `gnomon` of Knative: HAProxy carries the requests, this tells it where to.

    model       an Ingress as Knative writes it ▶ values that are known to be harmless; the hash that probes ask for
    backends    Services and EndpointSlices ▶ who serves, and by which protocol
    judging     which Ingresses can be served now, and what the others wait for
    routing     Ingresses ▶ tables: host, path, headers, share ▶ backend and headers
    maps        tables ▶ what HAProxy looks up; everything that a user wrote is hex or base64 there
    config      ▶ HAProxy's configuration, which only knows the names of headers and how many backends there are
    proxy       HAProxy's process: checked, started, reloaded, told by its runtime API
    programming from what it has to what it is to have, in an order in which no request falls in between
    controller  informers in, status out

Requests to Revisions that batch are led to the gateway while anybody is ready there, all others straight to those who serve.
"""
