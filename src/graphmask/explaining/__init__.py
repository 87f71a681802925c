"""What all methods share: look at the original run, choose, verify by a masked run, divide by graph."""
