"""The sensor that looks for what is due."""
