"""Members of a population as lanes of one loop."""
