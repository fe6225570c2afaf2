"""What exists: devices and what each of them holds, factories, streams."""
