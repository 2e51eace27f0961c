"""The live driver of the request path: queue, policy and dispatcher bound to real instances and a real clock."""
