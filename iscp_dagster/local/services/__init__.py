"""The stack's services: how each starts and what tells that it is well."""
