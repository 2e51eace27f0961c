"""Requests, the lanes in which they wait, and admission: the rule that accepts a request or refuses it at once."""
