"""The models of the paper, ready to train on Criteo-like data: ``stretto.examples.wide_deep:WideDeep`` and others."""
