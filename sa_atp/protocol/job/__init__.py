"""Code that a rank's side and the parameter server's side share: membership, requests and their answers, errors."""
