"""What a rank and the parameter server have in common: membership, requests and their answers, errors."""
