"""Delta tables: their log, read without Spark, and their rows, read with Spark or Arrow."""
