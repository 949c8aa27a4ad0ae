"""Servers: addresses, failures, quoting, and the barrier that late statements meet."""
