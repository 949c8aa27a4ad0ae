"""Subscriptions: cursors, one reading of each changes index, and what each subscriber is told."""
