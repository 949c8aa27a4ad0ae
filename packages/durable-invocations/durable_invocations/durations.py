"""The longest times that either side accepts, in seconds."""

YEAR = 366 * 86_400
"""The longest wait between two attempts."""
CENTURY = 100 * YEAR
"""The longest delay or sleep."""
