"""The report on INFaaS (Romero, Li, Yadwadkar, Kozyrakis: INFaaS: Automated Model-less Inference Serving, ATC 2021).

configurations  Tables 2 and 3: variants of ResNet50, and the cheapest of them for a load
catalog         Table 6 and section 1: the variants that were profiled here
serving         Figures 5 to 7: loads in virtual time beside Clipper+ and SM+
decisions       Table 7 and section 4: how long a selection and a scaling decision take

Claims are computed from `benchmarks/results` alone. Figures 5 and 6 are drawn from one seed, simulated when the report is made.
"""
