"""Multi-hop question answering with Entity-GCN: the paper's section 5."""
