"""What looks at the whole machine before and after: nothing else may begin or end clusters meanwhile."""
