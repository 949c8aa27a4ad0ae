"""The jobs of event triggers: conditions over a view's changes, and events for the outbox."""
