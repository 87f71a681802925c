"""Fitting: the recipe, the training loop, the constraint, and the choice of the final state."""
