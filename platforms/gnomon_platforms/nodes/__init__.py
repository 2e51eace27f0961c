"""Shadows from the nodes of a cluster, for whichever platform has Bodies in pods there: functions of OpenFaaS, Revisions.

    on_nodes     the coordinators, as their DaemonSet's pods come and go ▶ reached ▶ client: one node's state, and wishes
    pairs        every Shadow that is ours: asked for, found, changed, ended; far_pairs: those on another node than their Body's
    home         what a platform brings: its Bodies by their pods, room, who hears of it
    models       what was measured of functions' models, and where pools find their files
    permissions  what is asked of the API server in the coordinators' namespace

docs/decisions/0034-body-and-shadow-on-nodes.md says why.
"""
