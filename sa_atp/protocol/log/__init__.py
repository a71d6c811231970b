"""The log of decisions: which events there are (`rank_events`, `server_events`), and their lines (`lines`)."""
