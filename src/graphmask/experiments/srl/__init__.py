"""Semantic role labelling: the data, the model and the scores of the paper's section 6."""
