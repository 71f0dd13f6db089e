"""Strong peers of `auto` from the literature, each as something that scores candidates and then learns the batch."""
