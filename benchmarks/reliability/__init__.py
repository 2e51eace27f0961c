"""What hostile and careless use does to a running gateway: one module for each figure."""
