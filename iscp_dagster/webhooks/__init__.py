"""The outbox, and the sender that delivers its events by Standard Webhooks."""
