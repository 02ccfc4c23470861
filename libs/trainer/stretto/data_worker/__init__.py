"""A data worker: lanes, each a process that prepares batches for the workers of a job."""
