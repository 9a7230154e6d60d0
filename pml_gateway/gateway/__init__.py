"""The gateway itself: its state, listing for a client, and calling through."""
