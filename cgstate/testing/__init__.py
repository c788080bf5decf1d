"""What tests of programs that use cgstate are made of, and how the simulator is held against a GPU."""
