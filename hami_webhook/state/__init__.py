"""What the API server has shown, and what was decided here and counts before it shows it."""
