"""Policy: the client decides which tools exist for it, at every entry point."""
