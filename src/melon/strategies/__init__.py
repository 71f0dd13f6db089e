"""Update strategies: from the evidence of a batch to new values for the rows it touches."""
