"""The catalog: listings of upstreams become one immutable snapshot of named, repaired tools, kept on disk as well."""
