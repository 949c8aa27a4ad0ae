"""What becomes of invocations: submitted, claimed, completed, stopped, ended, forgotten."""
