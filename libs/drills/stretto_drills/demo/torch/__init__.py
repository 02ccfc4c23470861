"""The acts of ``stretto demo --trainer torch``: programs of PyTorch in place of a model that Stretto trains."""
