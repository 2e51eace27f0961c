"""The node's coordinator as the kubelet and pods meet it."""
