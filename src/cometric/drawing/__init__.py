"""Code shared by plots and the report, and the page of the report."""
