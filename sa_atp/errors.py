"""What a user can do something about. `sa-atp` turns each into one line and an exit status."""


class SaAtpError(Exception):
    """Base of everything the project raises on purpose; exit status 1."""


class UserError(SaAtpError):
    """The input is wrong: the message says what, where, and what would be accepted; exit status 2."""


class MissingPartError(SaAtpError):
    """A needed part is not on this machine: the message says which, and how to get it; exit status 3."""
