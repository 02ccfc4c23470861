"""Workers that average their dense gradients among themselves, so that no server has to take each worker's."""
