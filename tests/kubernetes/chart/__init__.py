"""What Helm makes of the chart."""
