"""The coordinator on a node of Kubernetes, as a DaemonSet.

    kubelet ──CSI──▶ csi ▶ volumes ▶ pod_sockets: a socket for each pod, in a folder that only this pod has mounted

The socket over which a Body connects tells which pod it is in, so a function's pod needs no right, no token and no host path.
"""
