"""Benchmarks: one runner per question, run as `python -m benchmarks.run_calls` from the repository root."""
