"""Reading and writing files, none of which is trusted."""
