"""S2Meta and MetaLSTM (docs/methods.md 3.5): gates for every parameter from an LSTM that runs over each one."""
