"""Implements `iscp up`, `down`, `env`, `status` and `logs`."""
