"""The two sensors: one finds what is due, the other reports news."""
