"""What happens to an update on its way: codecs and limits."""
