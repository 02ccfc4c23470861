"""Jobs as Kubernetes objects: an operator of TrainingJobs."""
