"""`iscp dlq`: the rows that indexes could not take and set aside."""
