"""When packets may leave, and what arrivals tell of the network: windows, round trips, sending, receiving."""
