"""The log is the truth: what happened, in order, synced before it is acknowledged; and how the learner cut it up."""
