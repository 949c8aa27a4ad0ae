"""The chDB engine: what it may reach, its connections, sessions and slots."""
