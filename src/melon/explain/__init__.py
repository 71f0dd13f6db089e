"""Learning-rate matrices, in numbers and pictures."""
