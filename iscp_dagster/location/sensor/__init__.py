"""The two sensors: one looks for what is due, the other reports news."""
