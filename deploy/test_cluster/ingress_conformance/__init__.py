"""Knative's conformance tests for ingress classes, against the class `gnomon`."""
