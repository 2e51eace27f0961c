"""Scaling of an application's variants and workers: the instances of each variant, and the workers (INFaaS, section 4.2).

| module | what |
| --- | --- |
| problem | the integer program of 4.2.1: demands, capacities less what waiting needs of them, objective and options |
| greedy | the heuristic of 4.2.2, with its waiting times; as printed, and with mixes of variants |
| exact | the integer program solved by HiGHS or column generation, in limited time; needs scipy (extra `infaas`), imported late |
| policy | the policy that gateways use: the integer program or the heuristic, with accuracy floors and overload |
| workers | the number of workers of 4.2.3 |
"""
