"""Servers: addresses, failures, quoting, and the barrier against late inserts."""
