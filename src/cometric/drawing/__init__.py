"""What plots and the report share, and the page of the report."""
