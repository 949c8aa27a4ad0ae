"""The tables of this location: every SourceTable at the top level of a module here."""
