"""Reverb's wire protocol, spoken without Reverb: its messages, and a client of one server."""
