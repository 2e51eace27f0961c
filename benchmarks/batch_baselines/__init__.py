"""BATCH beside vanilla Lambda, SageMaker's autoscaling and MArk: violations and cost on the same arrivals, in virtual time."""
