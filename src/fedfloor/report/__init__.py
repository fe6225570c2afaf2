"""Reports on runs: tables, figures and one self-contained page, read from run folders only."""
