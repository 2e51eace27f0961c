"""Reports on papers: what a paper says beside what we measure, as a page that anybody can make again.

A report is a list of parts, most often one for each figure of the paper. A part names its *steps*, which measure and whose
results are kept (`steps`), and then makes of the results a *section* (`report`): text, pictures (`pictures`), tables (`tables`)
and *claims* (`claims`), each with what the paper says, what was found here, and a verdict. `page` makes one HTML file of
all sections that needs nothing beside it; the tables lie beside the page as CSV, and all of it as JSON.

What another benchmark has measured is read where it lies (`measured`); what nobody has measured yet is said to be so.
"""
