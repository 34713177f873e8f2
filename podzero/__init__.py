"""podzero: distributed AlphaZero for TPU pods."""
