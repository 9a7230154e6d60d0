"""Child processes: servers with bounded and logged output, and workers for slow tasks; all are sure to end."""
