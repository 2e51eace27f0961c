"""HTTP/1.1: the embedded server, its connections, and the exchange of one request and one response."""
