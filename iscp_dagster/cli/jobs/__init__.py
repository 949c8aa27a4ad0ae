"""`iscp job`: its commands, options and output."""
