"""Reads rows of served indexes for one viewer."""
