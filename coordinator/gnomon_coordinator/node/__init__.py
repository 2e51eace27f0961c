"""The coordinator on a node of Kubernetes: who the pods are that have Shadows, and where those come from.

    kubelet ──CSI──▶ services ▶ volumes ▶ doors: a socket for each pod, in a folder that only this pod has mounted

The path by which somebody comes says who it is, so a function's pod needs no right, no token and no host path. `csi` has the
kubelet's messages, `folders` how paths of pods are walked without following anything.
"""
