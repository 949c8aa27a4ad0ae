"""The demo's real input: the documentation of the installed Python distributions."""
