"""The GraphQL schema, and documents that are checked against it."""
