"""What people see of a run: tables, figures and one self-contained page, read from run folders only."""
