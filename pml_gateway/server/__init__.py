"""The gateway itself: state, listing, calling, meta-tools, and its transports."""
