"""Policy: who asks decides which tools exist for it, at every entry point."""
