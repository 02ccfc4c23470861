"""One partition at its owner: take, load, replay, serve, hand over."""
