"""The lifecycle of jobs, and what the ISCP log does; it is kept in SQL, in `sql/`."""
