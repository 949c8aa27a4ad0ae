"""Which hosts and origins may use a server."""
