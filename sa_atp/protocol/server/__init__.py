"""The parameter server's side: `server` is the connection; jobs, admission, stored sums, answers about help."""
