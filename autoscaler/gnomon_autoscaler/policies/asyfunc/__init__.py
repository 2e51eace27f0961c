"""`asyfunc` and `asyfunc-`: the two levels of scaling of AsyFunc (sections 4.1 to 4.3).

| module | what |
| --- | --- |
| options | the policies' options |
| pairing | η, R_max (Eq. 1), block sets, and lines 7 to 23 of Algorithm 2 |
| mls | Algorithm 1, and promotion: Bodies out of Shadows |
| lls | Algorithm 2, the release of Shadows, R_burst, several Shadows per Body, growth of Bodies, and other nodes |
| policy | both levels at each tick |
"""

from gnomon_autoscaler.policies.asyfunc.options import Options
from gnomon_autoscaler.policies.asyfunc.policy import AsyFunc, ablated, asyfunc

__all__ = ["AsyFunc", "Options", "ablated", "asyfunc"]
