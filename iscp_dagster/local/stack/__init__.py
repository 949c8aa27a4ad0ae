"""`iscp up` and its kin."""
