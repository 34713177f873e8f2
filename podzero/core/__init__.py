"""Records, protocols, errors, clocks and waits: what every package stands on; it imports none of them."""
