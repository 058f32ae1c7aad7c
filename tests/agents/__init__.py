"""Members of a population that each have a stream of their own."""
