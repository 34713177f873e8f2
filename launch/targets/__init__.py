"""Where an experiment can be launched: files, commands and teardown for Google Cloud, one module per target."""
