"""What the server of parameters and its workers decide, pure: messages and the time go in, messages come out."""
