"""Studies that no command reaches, and the generated pages of the documentation."""
