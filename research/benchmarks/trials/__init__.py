"""Parts of trials with practice and rates that go on learning."""
