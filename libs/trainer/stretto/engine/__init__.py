"""The parameter-server engine: layout, servers, clients, live migration and checkpoint images."""
