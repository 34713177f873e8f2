"""Distributed AlphaZero and MuZero for TPU pods."""
