"""Both sides of an invocation as pure functions from events to events."""
