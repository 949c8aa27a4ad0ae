"""Sessions of Spark Connect and the names of columns."""
