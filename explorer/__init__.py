"""Attention Explorer: how attention really behaves on this machine."""

__version__ = "0.1.0"
