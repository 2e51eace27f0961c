"""Load tests against running systems, side by side with peers: reported, never a gate."""
