"""The users' side: services, and the ASGI app that serves them to a runtime."""
