"""The recommenders that can be chosen by name."""

from melon.registry import Entry, Registry

RECOMMENDERS = Registry(
    "recommender",
    "melon.models",
    Entry(
        "bpr",
        "matrix factorisation with item biases, trained on pairs (BPR-MF)",
        "melon.models.bpr:BPR",
        label="BPR",
    ),
    Entry(
        "ncf",
        "neural collaborative filtering: a product part and a four-layer network side by side (NeuMF)",
        "melon.models.ncf:NCF",
        label="NCF",
    ),
    Entry(
        "blend",
        "matrix factorisation, recent popularity and item neighbours, weighed by a small head that learns online",
        "melon.models.blend.recommender:Blend",
    ),
    Entry(
        "ials",
        "implicit ALS whose rows are solved anew from their last partners as the stream goes by",
        "melon.models.ials:IALS",
        label="iALS",
        driven=False,
    ),
)
