"""The evaluation of the scaling policies beside each other, simulated; `python -m benchmarks.reports.evaluation`.

grid     the cells: clusters, arrival processes, objectives, weights, policies, seeds
loads    arrival processes and files as arrival times
runs     one cell simulated
verdicts claims computed from the rows: means with intervals, Pareto curves, areas between them
pages    docs/evaluation.md, its figures, and all numbers as CSV and JSON
"""
