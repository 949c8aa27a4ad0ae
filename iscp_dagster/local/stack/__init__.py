"""What `iscp up`, `down`, `env`, `status` and `logs` do."""
