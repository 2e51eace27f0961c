"""Scaling of an application's variants and workers: the instances of each variant, and the workers (INFaaS, section 4.2).

| module | what |
| --- | --- |
| problem | the integer program of 4.2.1: demands, capacities, objective and options |
| greedy | the heuristic of 4.2.2, with its waiting times; as printed, and with mixes of variants |
| exact | the integer program solved by HiGHS, within a time limit; needs scipy (the extra `infaas`) and is imported late |
| decomposition | the same by column generation, where demands share resources only |
| installed | the policy that gateways use: the integer program where scipy is installed, else the heuristic |
| waiting | what instances serve in time: their capacity, less what waiting needs of it |
| floors | queries that accept less accuracy, where resources do not suffice |
| overload | instances for an Overloaded variant, by the load of its last period |
| workers | the number of workers of 4.2.3 |
| baselines | what section 6 compares it with: Clipper+ and SM+ |
"""
