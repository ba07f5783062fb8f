"""What the black-box tests share: the server under test, clients of its API, and a look at the host."""
