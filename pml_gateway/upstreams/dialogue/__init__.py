"""What upstreams and clients say to each other beside calls: questions, sessions, subscriptions."""
