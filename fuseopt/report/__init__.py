"""What was recorded, for people and programs."""
