"""What people do with an agent or an experiment: play, report, export, compile, measure, and use from Python."""
