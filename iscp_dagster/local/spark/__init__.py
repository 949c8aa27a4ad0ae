"""A local Spark Connect server made of installed packages."""
