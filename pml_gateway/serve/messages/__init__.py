"""Messages of clients: read alike on every transport, refused alike, and told apart by their ids."""
