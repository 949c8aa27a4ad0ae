"""What iterations read of views: image rows, for whom, and their gaps."""
