"""The model of a job, whatever framework it is written in: entry point, batches, keys, tables, evaluation."""
