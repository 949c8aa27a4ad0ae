"""What takes the rows of jobs: how it is called, and what jobs of one kind have in common."""
