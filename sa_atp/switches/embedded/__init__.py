"""The embedded P4 target: runs a compiled v1model program without BMv2. (docs/embedded-target.md)"""
