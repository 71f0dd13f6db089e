"""The learner: one process that cuts the log into batches, predicts, learns and publishes."""
