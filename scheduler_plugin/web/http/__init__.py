"""HTTP over connections whose clients are strangers: bounds, and hot paths."""
