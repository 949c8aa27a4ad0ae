"""The job API, and the one place that makes a deployment of the environment."""
