"""How fast fedfloor is, and how that is measured; ``fedfloor bench`` runs what is timed."""
