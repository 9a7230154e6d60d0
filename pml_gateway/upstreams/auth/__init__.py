"""Logins at upstreams: OAuth, stored and renewed, shared by every gateway on this home."""
