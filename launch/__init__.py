"""The only wiring: command line, processes, and what people see of a run. Nothing heavy is imported here."""
