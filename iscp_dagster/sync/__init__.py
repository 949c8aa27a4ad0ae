"""What one iteration does: reads a range once and brings it to every consumer."""
