"""Replicas behind a load balancer: processes, clients, faults, and the checks of their answers."""
