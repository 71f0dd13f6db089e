"""Element-wise ALS: an update strategy that solves for rows instead of stepping them."""
