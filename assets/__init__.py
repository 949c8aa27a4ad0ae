"""The tables of this location: every SourceTable at the top of a module here is one."""
