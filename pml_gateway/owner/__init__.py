"""Owner: what commands ask of a gateway, one that runs or one of their own."""
