"""The service invocation protocol, versions 1 to 3: frames, entries and results; pure."""
