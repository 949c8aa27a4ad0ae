"""The job API, and the one place that builds a deployment from the environment."""
