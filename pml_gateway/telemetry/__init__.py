"""What operators see of the gateway: one stream of events, and the log lines, spans and metrics made of it."""
