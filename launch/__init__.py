"""How an experiment is started: the command line, the doctor, and files and commands for Google Cloud."""
