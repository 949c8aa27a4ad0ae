"""`iscp events` and `iscp endpoint`: what triggers fired, and where it is delivered."""
