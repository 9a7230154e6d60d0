"""Storage: documents, tables and blobs that outlive a request; the kinds there are, and where each lies."""
