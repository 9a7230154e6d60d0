"""The meta-tools: search, describe, call, batch, workflow, stored results."""
