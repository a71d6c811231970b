"""What every room may use: errors, types of arrays, tables of plan files, folders, the terminal, what a machine needs."""
