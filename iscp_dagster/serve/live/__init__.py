"""Subscriptions: cursors, one reading of each changes index, and the messages to subscribers."""
