"""Methods for data whose matrix of all distances does not fit into memory."""
