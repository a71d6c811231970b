"""The embedded switch as a process: its compiled loop over ports, and impairments of its links."""
