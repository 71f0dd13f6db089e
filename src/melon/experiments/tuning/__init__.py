"""`melon tune`: Optuna over a strategy's declared search space, judged on data before the test part."""
