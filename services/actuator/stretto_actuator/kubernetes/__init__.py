"""Pods as Kubernetes pods."""
