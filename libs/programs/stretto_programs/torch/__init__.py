"""Programs of PyTorch with data workers: a hook in `DataLoader`."""
