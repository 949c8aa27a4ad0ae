"""The lifecycle of invocations: submitted, claimed, completed, stopped, ended, forgotten."""
