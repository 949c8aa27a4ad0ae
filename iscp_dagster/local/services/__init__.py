"""The stack's services: how each is started and how its health is checked."""
