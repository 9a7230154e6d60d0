"""The catalog: listings of upstreams as one immutable snapshot of named, repaired tools, kept on disk as well."""
