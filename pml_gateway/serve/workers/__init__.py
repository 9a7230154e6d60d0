"""Several processes behind one port: one accepts connections and hands each to a worker, which serves it."""
