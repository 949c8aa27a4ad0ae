"""The lifecycle of jobs, and the ISCP log: in memory here, in SQL below."""
