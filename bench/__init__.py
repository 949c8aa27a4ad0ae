"""Side-by-side measurements: `python -m bench`."""
