"""The loop of a connection's thread: it waits, takes, sends, paces, and runs compiled streams."""
