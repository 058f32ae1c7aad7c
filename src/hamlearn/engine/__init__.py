"""Who runs an order: sample by sample, in recorded blocks, as lanes of a population, tick by tick."""
