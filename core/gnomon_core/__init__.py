"""Values and interfaces that every part of Gnomon shares.

Values, interfaces and the rules for reading a function's settings live here; behaviour lives in the parts.
The core imports nothing but the standard library, so that any part, an instance's process included, can import it at no cost.

Read `interfaces` first: the page of everything that can be replaced.
"""
