"""Reports on runs, from their folders only: tables, charts and a self-contained HTML page."""
