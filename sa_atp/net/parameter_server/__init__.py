"""The parameter server as a process: its loop, and the thread that writes jobs to switches."""
