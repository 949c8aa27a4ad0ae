"""The Delta log, read without Spark."""
