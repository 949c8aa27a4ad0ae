"""The consumer of a service consumer's job: a tenant's changes in; invocations of a handler out."""
