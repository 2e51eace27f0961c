"""Applications: queries that name a goal instead of a model, and the member functions that answer them."""
