"""Keeps services up: starts, watches and ends their processes."""
