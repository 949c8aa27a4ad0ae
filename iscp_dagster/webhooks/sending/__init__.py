"""What sends: signatures, vetted addresses, attempts, and the sender that makes them."""
