"""HTTP: the routes and who may ask them, sessions that come back, and the server that listens."""
