"""One job's pods brought to its plan: started, moved, closed."""
