"""`sa-atp reproduce`: the papers' main claims beside results of this project."""
