"""The passes over memory that compression is made of, one contract for each device."""
