"""What becomes of entries: each is committed together with what it does."""
