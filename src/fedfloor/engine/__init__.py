"""Who executes: ranks that walk a plan."""
