"""The resource classes that a deployment configures."""
