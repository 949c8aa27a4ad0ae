"""What users declare, and how values become bytes."""
