"""`sa-atp map`: which policy has the shortest step, or reaches an accuracy first, over two axes of a plan."""
