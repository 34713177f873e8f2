"""Reverb's wire protocol without Reverb: its messages, and a client of one server."""
