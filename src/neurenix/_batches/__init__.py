"""Facts of a batch that several floors need: which rows are examples."""
