"""What is declared: source tables, their indexes by kind, shards, names and columns."""
