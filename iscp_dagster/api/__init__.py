"""The job API, and the one place that makes an engine of the environment."""
