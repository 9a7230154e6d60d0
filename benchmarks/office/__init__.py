"""A scripted office: systems that keep a state, servers of others around them, and tasks with the state they end in."""
