"""Reports on papers: what a paper says beside what we measure, as a page that anybody can make again.

report         the kit: steps whose results are kept, claims with verdicts, pictures, tables, the page
batch          the report on BATCH (SC'20)
infaas         the report on INFaaS (ATC'21)
evaluation     the scaling policies beside each other, simulated
asyfunc_hours  AsyFunc's simulated hours as tables of a document

What another benchmark has measured is read from `benchmarks/results`; what nobody has measured yet is "not measured".
"""
