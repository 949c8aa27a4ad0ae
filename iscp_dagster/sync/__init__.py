"""One iteration: read a range once and hand it to every consumer."""
