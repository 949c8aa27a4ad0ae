"""The iteration: its next steps are decided by a pure machine, and executed by services."""
