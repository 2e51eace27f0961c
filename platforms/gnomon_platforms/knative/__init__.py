"""Knative as its users know it: a ksvc, whose Revisions we scale and whose requests we may buffer.

scaling   an autoscaler class: PodAutoscalers of the class `gnomon` are scaled by our policies
"""
