"""GraphMask: which edges did a graph neural network use, at which layer, and can I believe that?"""
