"""What the chaos run is made of: upstreams that fail, what makes them fail, clients that check every answer."""
