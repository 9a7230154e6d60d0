"""Telemetry for operators: one stream of events, and the log lines, spans and metrics derived from it."""
