"""Reports on the gateway, for people and programs: costs, doctor, replay, reference."""
