"""What a plan costs on a park's network: links, radio, compute; seconds, bytes and joules."""
