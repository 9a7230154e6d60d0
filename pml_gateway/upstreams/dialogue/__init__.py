"""Messages between upstreams and clients other than calls: questions, sessions, subscriptions."""
