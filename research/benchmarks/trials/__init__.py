"""Parts of trials with meta-training and rates that go on learning."""
