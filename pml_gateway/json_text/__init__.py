"""JSON text: large messages are read and written in turns with everything else."""
