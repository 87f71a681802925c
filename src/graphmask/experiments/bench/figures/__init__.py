"""One file of all measured figures (`docs/figures.json`), and the tables of the documentation that are made from it."""
