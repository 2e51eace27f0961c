"""What is promised while processes die, clients leave and deployments change. A package, so that one gateway serves it."""
