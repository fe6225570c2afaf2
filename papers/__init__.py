"""Published tables, computed again beside the printed figures; ``fedfloor reproduce`` reads them."""
