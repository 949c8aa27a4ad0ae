"""Events of views and triggers: timestamps, keys, ids and payloads; pure."""
