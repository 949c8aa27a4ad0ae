"""The life cycle of jobs and its log: in memory here, in SQL below."""
