"""Subscriptions: cursors, the one reading of each changes index, and graphql-transport-ws."""
