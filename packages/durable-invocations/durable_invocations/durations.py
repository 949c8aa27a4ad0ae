"""The longest times that either side takes, in seconds."""

YEAR = 366 * 86_400
"""Between attempts."""
CENTURY = 100 * YEAR
"""A delay, or a sleep."""
