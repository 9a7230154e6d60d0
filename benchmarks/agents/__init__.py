"""Models that carry out tasks through a gateway: whoever answers, the conversation, its transcript and its figures."""
