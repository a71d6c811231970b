"""The embedded switch as a process: its ports' compiled loop, and faults that it can be asked for."""
