"""Logins at upstreams: OAuth, stored and renewed, shared by all gateways with the same home folder."""
