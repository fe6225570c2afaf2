"""The execution of plans: ranks that walk them."""
