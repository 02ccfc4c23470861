"""The process of a pod, whatever its role: settings, bus, credentials, the job's code, traces, an orderly end."""
