"""`gnomon`: as few Bodies as would have kept the objective in the last minutes, on cores that are borrowed by the batch."""

from gnomon_autoscaler.policies.gnomon.policy import Gnomon, Options, gnomon

__all__ = ["Gnomon", "Options", "gnomon"]
