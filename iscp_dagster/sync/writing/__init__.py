"""Writes what a scan reads, and puts it in place."""
