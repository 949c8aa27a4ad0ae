"""The iteration: what it does next is decided without services, and carried out with them."""
