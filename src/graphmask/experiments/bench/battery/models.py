"""The battery by name. Names and halves are fixed before anything is measured; no model moves from one to the other."""

from __future__ import annotations

from functools import partial

from graphmask.experiments.bench.battery import frozen, hetero, molecules, nodes, others, reasoning, white_boxes
from graphmask.experiments.bench.battery.entry import CHECK, DESIGN, Entry

_FROZEN = "published weights of another group: three GCNConv of 20, explained as they are"
_CITATIONS = "nodes of one generated citation network (1,200 nodes, 500 words, 120 labels); Adam .01, 200 epochs"
_PLAIN = "width 32, Adam with falling rate, best epoch on validation graphs"

ENTRIES: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry(
            "frozen_ba_shapes",
            DESIGN,
            "nodes",
            f"BA-Shapes (700 nodes, houses on a random graph); {_FROZEN}.",
            partial(frozen.of_nodes, "ba_shapes"),
        ),
        Entry(
            "frozen_tree_grid",
            DESIGN,
            "nodes",
            f"Tree-Grid (1,231 nodes, grids on a tree); {_FROZEN}.",
            partial(frozen.of_nodes, "tree_grid"),
        ),
        Entry(
            "nodes_gcn",
            DESIGN,
            "nodes",
            f"Two GCNConv with dropout .5 on {_CITATIONS}, weight decay 5e-4.",
            partial(nodes.make, "gcn"),
        ),
        Entry(
            "mutagenicity_gin",
            DESIGN,
            "graphs",
            f"Three GIN layers and a sum over atoms on Mutagenicity (4,337 molecules); {_PLAIN}, 20 epochs.",
            partial(molecules.mutagenic, "gin"),
        ),
        Entry(
            "ba2motifs_gcn",
            DESIGN,
            "graphs",
            f"Three GCN layers and a mean over nodes on BA-2Motifs (1,000 graphs); {_PLAIN}, 100 epochs.",
            partial(molecules.ba_2motifs, "gcn"),
        ),
        Entry(
            "reasoning_rgcn",
            DESIGN,
            "relations",
            f"Two RGCNConv on two-hop questions over six relations, 1,500 graphs, 40 to validate; {_PLAIN}, 40 epochs.",
            partial(reasoning.make, "rgcn", reasoning.Task(), 0),
        ),
        Entry(
            "regression",
            DESIGN,
            "regression",
            f"Two GraphConv, a sum over nodes and an MLP count edges between two kinds of nodes; {_PLAIN}, 40 epochs.",
            others.regression,
        ),
        Entry(
            "six_layers",
            DESIGN,
            "nodes",
            f"Six residual GIN layers tell the distance (0 to 6) to a marked node in small trees; {_PLAIN}, 40 epochs.",
            others.six_layers,
        ),
        Entry(
            "star",
            DESIGN,
            "relations",
            "The library's star graphs (paper, section 4): one relational layer, trained as in `graphmask run star`.",
            partial(others.coloured, "star"),
        ),
        Entry(
            "white_count",
            DESIGN,
            "white box",
            "Weights set by hand: two GraphConv count the root's neighbours, colour A in layer 1, colour B in layer 2.",
            partial(white_boxes.make, "count"),
        ),
        Entry(
            "hetero",
            DESIGN,
            "hetero",
            f"Two HeteroConv of SAGEConv: has a paper more red authors than blue ones? {_PLAIN}, 40 epochs.",
            hetero.make,
        ),
        Entry(
            "reasoning_gated",
            DESIGN,
            "relations",
            f"The questions of reasoning_rgcn; messages are transformed by relation and gated; {_PLAIN}, 40 epochs.",
            partial(reasoning.make, "gated", reasoning.Task(), 1),
        ),
        Entry(
            "frozen_tree_cycles",
            CHECK,
            "nodes",
            f"Tree-Cycles (871 nodes, cycles on a tree); {_FROZEN}.",
            partial(frozen.of_nodes, "tree_cycles"),
        ),
        Entry(
            "frozen_ba_2motifs",
            CHECK,
            "graphs",
            f"BA-2Motifs; {_FROZEN}. Our own graphs, class 1 has the house: accuracy .962 (published: .99).",
            frozen.ba_2motifs,
        ),
        Entry(
            "frozen_mutagenicity",
            CHECK,
            "graphs",
            f"Mutagenicity; {_FROZEN}. One-hot atoms, class 0 mutagenic, pooled over 417 nodes with padding: accuracy "
            ".824 on all molecules (published: .813 on a test set).",
            frozen.mutagenic,
        ),
        Entry(
            "nodes_gat",
            CHECK,
            "nodes",
            f"Two GATConv (8 heads of 8, then one) with dropout .5 on {_CITATIONS}, weight decay 5e-4.",
            partial(nodes.make, "gat"),
        ),
        Entry(
            "nodes_sage",
            CHECK,
            "nodes",
            f"Two SAGEConv with dropout .5 on {_CITATIONS}, weight decay 5e-4.",
            partial(nodes.make, "sage"),
        ),
        Entry(
            "mutagenicity_gcn",
            CHECK,
            "graphs",
            f"Three GCN layers and a mean over atoms on Mutagenicity; {_PLAIN}, 20 epochs.",
            partial(molecules.mutagenic, "gcn"),
        ),
        Entry(
            "ba2motifs_gin",
            CHECK,
            "graphs",
            f"Three GIN layers and a sum over nodes on BA-2Motifs; {_PLAIN}, 100 epochs.",
            partial(molecules.ba_2motifs, "gin"),
        ),
        Entry(
            "reasoning_rgcn_deep",
            CHECK,
            "relations",
            f"Three RGCNConv on three-hop questions over eight relations with more distractors; {_PLAIN}, 40 epochs.",
            partial(reasoning.make, "rgcn", reasoning.DEEP, 2),
        ),
        Entry(
            "links",
            CHECK,
            "links",
            "Two GCN layers and an inner product predict citations (600 nodes); Adam .01, 100 epochs.",
            others.links,
        ),
        Entry(
            "jumping_knowledge",
            CHECK,
            "graphs",
            f"Three GIN layers with jumping knowledge (jk='cat') on three motifs, 1,500 graphs; {_PLAIN}, 30 epochs.",
            molecules.jumping_knowledge,
        ),
        Entry(
            "relay",
            CHECK,
            "relations",
            "The library's relay graphs: two layers with relations in the message, as in `graphmask run relay`.",
            partial(others.coloured, "relay"),
        ),
        Entry(
            "white_two_hops",
            CHECK,
            "white box",
            "Weights set by hand: colour A goes from leaves through flagged nodes to the root, two GraphConv.",
            partial(white_boxes.make, "two_hops"),
        ),
        Entry(
            "white_relations",
            CHECK,
            "white box",
            "Weights set by hand: relation 0 in layer 1, then relation 1 in layer 2 lead to the root, two RGCNConv.",
            partial(white_boxes.make, "relations"),
        ),
    )
}
