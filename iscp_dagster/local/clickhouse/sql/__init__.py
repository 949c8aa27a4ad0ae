"""Statements taken apart, as far as the server must know them."""
