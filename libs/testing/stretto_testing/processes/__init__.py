"""The processes of a simulated installation: services in their versions, pods of jobs."""
