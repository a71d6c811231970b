"""Basics for every room: errors, array types, tables of plan files, folders, the terminal, requirements of a machine."""
