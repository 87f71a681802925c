"""GraphMask beside PyTorch Geometric's explainers as shipped: twelve sets, one frozen model each, one run."""
