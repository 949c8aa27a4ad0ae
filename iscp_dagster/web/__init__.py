"""What stands before a web server on this machine: which requests are let in at all."""
