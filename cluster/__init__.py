"""All that podzero asks of Ray and of machines: nodes, placement, remote actors, and checks before a run starts."""
