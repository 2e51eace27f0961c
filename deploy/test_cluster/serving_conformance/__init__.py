"""Knative Serving's conformance tests, by the stock autoscaler class and by the class `gnomon`."""
