"""AsyFunc's Figures 2, 3, 4 and 7 and its appendix, from measured profiles: as tables and as plots.

`tables` needs nothing but a profile, `files` writes them as CSV, `plots` draws them and needs matplotlib. Where the paper says
layer, these say block: runs of operations as the Extractor cut them.
"""
