"""The lifecycle of jobs, and the ISCP log, which `sql/` keeps in SQL."""
