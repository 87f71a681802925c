"""What all methods share: run the original model, choose, verify by a masked run, divide by graph."""
