"""The operator of TrainingJobs, which are jobs as Kubernetes objects."""
