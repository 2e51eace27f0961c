"""Reports on papers: what a paper says beside what we measure, as a page that anybody can make again.

A report names its *steps*, which measure and whose results are kept (`steps`), and then makes *sections* of the results
(`sections`), most often one for each figure of the paper: text, pictures (`pictures`), tables (`tables`) and *claims* (`claims`),
each with what the paper says, what was found here, and a verdict. `report` writes all of it: `page` makes one HTML file that
needs nothing beside it, and the tables lie beside it as CSV and JSON.

What another benchmark has measured is read where it lies (`measured`); what nobody has measured yet is said to be so.
"""
