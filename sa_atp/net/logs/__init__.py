"""Logs of decisions as files: `writing`, `reading`. (docs/log.md)"""
