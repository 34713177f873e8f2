"""Monitoring of a run: reports of its workers, their aggregation, status, metric files, log file, terminal view."""
