"""What keeps the server from starting."""


class StartError(Exception):
    """A setting is wrong, or this machine lacks something; nothing was started or written."""
