"""What keeps indexes well between iterations: maintenance, dead letters, comparison."""
