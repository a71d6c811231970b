"""The decisions of the server of parameters and its workers, pure: messages and the time go in, messages come out."""
