"""What can be said of an answer: certificates and diagnoses."""
