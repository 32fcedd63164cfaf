"""Programs, and what runs them."""
