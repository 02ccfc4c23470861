"""Requests of users: submissions, changes of jobs, and questions."""
