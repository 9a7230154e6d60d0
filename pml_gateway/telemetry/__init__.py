"""What operators see of the gateway: log lines, request ids, spans and metrics."""
