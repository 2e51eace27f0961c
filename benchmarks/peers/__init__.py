"""The systems that Gnomon is measured beside, each in an environment of its own."""
