"""Which relation do two marked entities have? MiniLM on passages of Re-DocRED whose evidence people marked."""
