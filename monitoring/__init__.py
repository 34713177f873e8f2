"""What a run reports: reports of its workers, their aggregation, status, metric writers, and the terminal view."""
