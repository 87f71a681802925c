"""Tasks with known answers: data, model and gold explanations."""
