"""What people look at: what runs where, profiles, drawings, and the table of what back ends support."""
