"""The runtime: drives the handlers of service deployments, durably."""
