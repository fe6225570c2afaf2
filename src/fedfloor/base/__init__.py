"""What every room uses: errors, chance, checks of values, names. It imports nothing of the others."""
