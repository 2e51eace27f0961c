"""`asyfunc` and `asyfunc-`: the two levels of scaling of AsyFunc (sections 4.1 to 4.3).

| module | what |
| --- | --- |
| options | what the policies can be told |
| efficiency | η |
| sustained | R_max, Eq. 1 |
| model_level | Algorithm 1 |
| bodies | its number, as a count policy |
| demand | R_burst |
| block_sets | the candidates of Algorithm 2 |
| pairings | lines 7 to 23 of Algorithm 2, worked out once |
| places | on which node a Body's Shadow may be |
| layer_level | Algorithm 2 and the release of Shadows |
| several | more than one Shadow per Body |
| growth | Bodies that grow for a burst, in place of Shadows |
| promotion | Bodies out of Shadows |
| knowledge | what follows from the profile alone |
| policy | both levels at each tick |
"""

from gnomon_autoscaler.policies.asyfunc.options import Options
from gnomon_autoscaler.policies.asyfunc.policy import AsyFunc, ablated, asyfunc

__all__ = ["AsyFunc", "Options", "ablated", "asyfunc"]
