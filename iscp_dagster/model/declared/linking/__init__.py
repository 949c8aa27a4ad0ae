"""What a location declares, taken together."""
