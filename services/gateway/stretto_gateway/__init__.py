"""The gateway of Stretto: the REST interface, its event streams, and the read model behind them."""
