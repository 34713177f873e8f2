"""What several commands share: options, printing, trust in code, and the address of a web page."""
