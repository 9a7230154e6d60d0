"""Example queries: what people ask who need a tool, kept per definition, as evidence for search and nothing else."""
