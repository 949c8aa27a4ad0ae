"""A Spark Connect server of packages alone."""
