"""HTTP: the embedded server, and the exchange of one request and one answer on a connection."""
