"""What users declare, and how values are serialized."""
